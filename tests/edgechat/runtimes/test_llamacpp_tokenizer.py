"""Tokens against llama-cpp-python's high-level class and against transformers."""

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import LlamaCppRuntime, abi
from edgechat.runtimes.llamacpp.tokenizer import KNOWN_TO_LLAMA_CPP, LlamaCppTokenizer
from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "  two spaces, then\na line\r\n\tand a tab",
    "Grüße aus Köln, ça va? ¿Qué tal? Привет, мир. שלום עולם مرحبا بالعالم",
    "你好，世界。こんにちは世界 안녕하세요 สวัสดีชาวโลก नमस्ते दुनिया",
    "👩‍👩‍👧‍👦 🏳️‍🌈 ☃ e\u0301 \u200b\ufeff",
    "def f(x: int) -> int:\n    return x ** 2  # 3.14159e-10\n\n\n",
    "1234567890 12,345.67 0xDEADBEEF",
    "a\x00b\x00",
    "\x01\x02\x7f",
    " " * 300,
    "=" * 300,
    "word " * 500,
]


@pytest.fixture(scope="module")
def high_level(starter_gguf: Path) -> Iterator[Any]:
    import llama_cpp

    llama = llama_cpp.Llama(str(starter_gguf), vocab_only=True, verbose=False)
    yield llama
    llama.close()


@pytest.fixture
def tokenizer(loaded: LlamaCppRuntime) -> LlamaCppTokenizer:
    return loaded.tokenizer


def random_text(dice: random.Random) -> str:
    alphabets = (range(0x20, 0x7F), range(0xA0, 0x500), range(0x3040, 0x3100), range(0x1F600, 0x1F640))
    return "".join(chr(dice.choice(dice.choice(alphabets))) for _ in range(dice.randint(1, 80)))


def test_ids_are_those_of_the_high_level_class(tokenizer: LlamaCppTokenizer, high_level: Any) -> None:
    dice = random.Random(7)
    for text in [*TEXTS, *(random_text(dice) for _ in range(100)), "<|im_start|>user\nhi<|im_end|>"]:
        for special in (True, False):
            expected = high_level.tokenize(text.encode(), add_bos=False, special=special) if text else []
            assert tokenizer.encode(text, special=special) == expected


def test_pieces_join_to_the_text(tokenizer: LlamaCppTokenizer) -> None:
    dice = random.Random(8)
    for text in [*TEXTS, *(random_text(dice) for _ in range(100))]:
        assert b"".join(map(tokenizer.piece, tokenizer.encode(text))) == text.encode()


def test_special_tokens_are_read_only_when_asked_for(tokenizer: LlamaCppTokenizer) -> None:
    assert tokenizer.encode("<|im_end|>") == [2]
    plain = tokenizer.encode("<|im_end|>", special=False)
    assert 2 not in plain
    assert b"".join(map(tokenizer.piece, plain)) == b"<|im_end|>"
    assert tokenizer.piece(2) == b""
    assert tokenizer.name(2) == "<|im_end|>"
    assert tokenizer.name(tokenizer.encode(" the")[0]) == " the"


def test_a_lone_surrogate_is_read_as_the_replacement_character(tokenizer: LlamaCppTokenizer) -> None:
    assert tokenizer.encode("a\ud800b\udfff") == tokenizer.encode("a\ufffdb\ufffd")


def test_a_long_text_grows_the_buffer(tokenizer: LlamaCppTokenizer) -> None:
    text = "\u16a0\u16a1" * 2000  # runes: a token for each byte
    tokens = tokenizer.encode(text)
    assert len(tokens) > len(text.encode()) // 2 + 16
    assert b"".join(map(tokenizer.piece, tokens)) == text.encode()


def test_tokens_that_are_not_there(tokenizer: LlamaCppTokenizer) -> None:
    for token in (-1, 49152, 2**31, 2**40):
        with pytest.raises(ValueError, match="no token"):
            tokenizer.piece(token)
        with pytest.raises(ValueError, match="no token"):
            tokenizer.name(token)
        assert token not in tokenizer.eog_ids


def test_the_starters_vocabulary(loaded: LlamaCppRuntime, tokenizer: LlamaCppTokenizer) -> None:
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.add_bos) == (49152, 1, False)
    assert {tokenizer.name(token) for token in tokenizer.eog_ids} == {
        "<|endoftext|>",
        "<|im_end|>",
        "<reponame>",
    }
    assert loaded.info.eog_ids == tokenizer.eog_ids
    assert tokenizer.eog_ids == (0, 2, 4)


def test_every_end_of_a_turn_is_found(loaded: LlamaCppRuntime) -> None:
    every_end_of_a_turn_is_found(loaded)


def test_every_end_of_a_turn_of_gemma_is_found(gemma: LlamaCppRuntime) -> None:
    every_end_of_a_turn_is_found(gemma)


def every_end_of_a_turn_is_found(runtime: LlamaCppRuntime) -> None:
    """By asking llama.cpp for each token, which is too slow to do at every start."""
    llama: Any = abi.llama()
    vocab = runtime.tokenizer._vocab
    flagged = {token for token in range(runtime.tokenizer.n_vocab) if llama.llama_vocab_is_eog(vocab, token)}
    tags = {token for token in flagged if runtime.tokenizer.piece(token) == b"</s>"}
    assert set(runtime.tokenizer.eog_ids) == flagged - tags
    assert {runtime.tokenizer.name(token) for token in flagged} <= {*KNOWN_TO_LLAMA_CPP, "<reponame>"}


def test_gemmas_vocabulary(gemma: LlamaCppRuntime) -> None:
    tokenizer = gemma.tokenizer
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.add_bos) == (262144, 2, True)
    assert {tokenizer.name(token) for token in tokenizer.eog_ids} == {"<eos>", "<end_of_turn>"}
    # Byte tokens, and no space put before the text.
    assert b"".join(map(tokenizer.piece, tokenizer.encode("\x07 x \x00"))) == b"\x07 x \x00"
    assert tokenizer.encode("hello") != tokenizer.encode(" hello")


def test_an_html_tag_is_not_the_end_of_gemmas_turn(gemma: LlamaCppRuntime) -> None:
    """Gemma has "</s>" as a token of text; llama.cpp takes it for the end."""
    tokens = gemma.tokenizer.encode("<s>old</s>")
    assert b"".join(map(gemma.tokenizer.piece, tokens)) == b"<s>old</s>"
    assert not set(tokens) & set(gemma.tokenizer.eog_ids)


def test_pieces_longer_than_the_buffer(gemma: LlamaCppRuntime) -> None:
    """Gemma has runs of up to 31 spaces of three bytes each in its vocabulary, and longer ones of others."""
    pieces = [gemma.tokenizer.piece(token) for token in range(gemma.tokenizer.n_vocab)]
    long = [piece for piece in pieces if len(piece) > 32]
    assert len(long) >= 300
    assert all(long)
    # Of 262,144 tokens 6,414 are control tokens and unused ones; nearly all others have bytes.
    assert sum(not piece for piece in pieces) < 6500


@pytest.mark.oracle
def test_ids_are_those_of_transformers(tokenizer: LlamaCppTokenizer, starter_gguf: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(starter_gguf.parent), gguf_file=starter_gguf.name)
    dice = random.Random(9)
    for text in [*TEXTS, *(random_text(dice) for _ in range(50))]:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False), repr(text)


@pytest.mark.oracle
def test_characters_without_a_token_have_the_ids_of_transformers(
    tokenizer: LlamaCppTokenizer, starter_gguf: Path
) -> None:
    """The starter's vocabulary lacks six control characters: what stands around one may be one token."""
    from transformers import AutoTokenizer

    reference: Any = AutoTokenizer.from_pretrained(starter_gguf.parent, gguf_file=starter_gguf.name)
    assert [tokenizer.encode(chr(i)) for i in (4, 6, 0x13, 0x14, 0x16, 0x1D)] == [[]] * 6
    parts = [
        *"\x03\x04\x06\x13\x14\x16\x1b\x1d \n\t'stas_<@#(\xa0\u4e2d\u0301\u284a",
        "'s",
        "  ",
        "<|im_end|>",
        "\U0001f600",
    ]
    dice = random.Random(13)
    drawn = ("".join(dice.choices(parts, k=dice.randrange(1, 14))) for _ in range(5_000))
    for text in [" \x06'", "'\x06s", "\x06's", " \x06's", "#\x06#", "<|im_end|>\x14<|im_end|>", *drawn]:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False), repr(text)


DECOMPOSED = [
    unicodedata.normalize("NFD", hf_models.SCRIPTS),
    *(unicodedata.normalize("NFD", text) for text in TEXTS),
    "\u212b \u212a \u2126 \u037e \u0374",  # each is one other character when composed
    "\u1100\u1161\u11a8 a\u0323\u0302 a\u0302\u0323",
    "<|begin|>u\u0308<|end|>\u0338<tool>\u0301e\u0301",  # a sign behind a token's name is not part of it
    "<|end|\u037e",
]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (hf_models.QWEN2, None),
        (hf_models.SMOLLM, None),
        (hf_models.QWEN2, "Qwen2Tokenizer"),  # composes though tokenizer.json doesn't say so
        (hf_models.QWEN2, "LlamaTokenizerFast"),
        (hf_models.SMOLLM, "CohereTokenizerFast"),
        (hf_models.GPT2_LIKE, "GPTNeoXTokenizerFast"),
        (hf_models.GPT2_LIKE, "GPT2Tokenizer"),
    ],
)
def test_decomposed_text_has_the_ids_of_transformers(kind: str, named: str | None, tmp_path: Path) -> None:
    """Composed where the model's own tokenizer composes, and nowhere else."""
    from transformers import AutoTokenizer

    from quantize.pipeline import Request, run
    from quantize.plan import target_of

    folder = tmp_path / "model"
    config = CONVERTIBLE["llama"]()
    config.vocab_size = hf_models.save_bpe(folder, kind)
    hf_models.save_model(folder, config)
    if named:
        for name, change in (
            ("tokenizer", {"normalizer": None}),
            ("tokenizer_config", {"tokenizer_class": named}),
        ):
            path = folder / f"{name}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | change))
    result = run(Request(folder, target_of("f16"), tmp_path / "x.gguf"))
    assert not result.notes
    reference = AutoTokenizer.from_pretrained(folder)
    dice = random.Random(10)
    runtime = LlamaCppRuntime.load(LoadSettings(str(result.path), n_ctx=64, n_threads=1))
    try:
        ours = runtime.tokenizer
        for text in [*DECOMPOSED, *(unicodedata.normalize("NFD", random_text(dice)) for _ in range(50))]:
            assert ours.encode(text) == reference.encode(text, add_special_tokens=False), repr(text)
        composed = b"".join(map(ours.piece, ours.encode(DECOMPOSED[0])))
        composes = "NFC" in str(reference.backend_tokenizer.normalizer)
        assert (composed.decode() == hf_models.SCRIPTS) is composes
    finally:
        runtime.close()
