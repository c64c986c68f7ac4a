"""Tokenizers: small ones of each kind against `tokenizers` and `sentencepiece`, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import BrokenModelFile, UnsupportedModel
from models.pretokenizer import name_of
from models.tokenizer import TokenType, read
from tests.oracles import hf_models
from tests.oracles.raw_checkpoint import CHAT_TEMPLATE, MERGES, SPECIALS, VOCAB, config, tokenizer, write

N = len(VOCAB)


def words(tmp_path: Path, **changes: Any) -> Path:
    """A checkpoint with another tokenizer.json."""
    return write(tmp_path / "model", words=tokenizer(**changes))


def test_byte_level_bpe(tmp_path: Path) -> None:
    """Tokens, types, merges, special tokens and template; rows without a token are unused."""
    vocabulary = read(write(tmp_path), N + 2)
    assert (vocabulary.model, vocabulary.pre) == ("gpt2", "gpt-2")
    assert vocabulary.tokens == (*VOCAB, f"[PAD{N}]", f"[PAD{N + 1}]")
    assert (
        vocabulary.types == (TokenType.CONTROL,) * 2 + (TokenType.NORMAL,) * (N - 2) + (TokenType.UNUSED,) * 2
    )
    assert vocabulary.merges == tuple(MERGES)
    assert vocabulary.scores == ()
    assert vocabulary.special == {"eos": 0, "bos": 1}
    assert (vocabulary.add_bos, vocabulary.add_eos, vocabulary.add_space_prefix) == (False, False, False)
    assert vocabulary.chat_template == CHAT_TEMPLATE
    assert vocabulary.notes == ()


def test_merges_in_both_forms(tmp_path: Path) -> None:
    """ "a b" until tokenizers 0.19, ["a", "b"] since."""
    model = {**tokenizer()["model"], "merges": [merge.split(" ") for merge in MERGES]}
    assert read(words(tmp_path, model=model), N).merges == tuple(MERGES)


def test_added_tokens(tmp_path: Path) -> None:
    """Special ones are control tokens, others are matched in any text; those without a row are left out."""
    added = [
        {"id": 0, "content": SPECIALS[0], "special": True},
        {"id": N, "content": "<tool>", "special": False},
        {"id": N + 1, "content": "<image>", "special": True},
    ]
    vocabulary = read(words(tmp_path, added_tokens=added), N + 1)
    assert vocabulary.tokens[N] == "<tool>"
    assert vocabulary.types[N] == TokenType.USER_DEFINED
    assert vocabulary.types[:2] == (TokenType.CONTROL, TokenType.NORMAL)
    (note,) = vocabulary.notes
    assert note == "1 added tokens have no row in the embedding and were left out: <image>"


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": SPECIALS[1]}},
        {"Sequence": {"id": "A"}},
        {"SpecialToken": {"id": SPECIALS[0]}},
    ],
}


@pytest.mark.parametrize(
    ("processor", "settings", "expected"),
    [
        (None, {}, (False, False)),
        (TEMPLATE, {}, (True, True)),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, {}, (True, True)),
        ({**TEMPLATE, "single": TEMPLATE["single"][:2]}, {}, (True, False)),
        (TEMPLATE, {"add_bos_token": False}, (False, False)),
        (None, {"add_bos_token": True}, (True, False)),
    ],
)
def test_tokens_around_a_text(
    tmp_path: Path, processor: Any, settings: dict[str, bool], expected: tuple[bool, bool]
) -> None:
    """By the post-processor, unless tokenizer_config.json says otherwise."""
    folder = words(tmp_path, post_processor=processor)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    vocabulary = read(folder, N)
    assert (vocabulary.add_bos, vocabulary.add_eos) == expected


def test_the_end_of_a_turn_beside_the_end_of_a_text(tmp_path: Path) -> None:
    """generation_config.json may name more than one; the one in the template ends turns."""
    folder = write(tmp_path)
    file = folder / "tokenizer_config.json"
    hell = VOCAB.index("hell")
    named = {**json.loads(file.read_text()), "chat_template": "{{ x }}hell"}
    file.write_text(json.dumps(named))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 5, hell]}))
    assert read(folder, N).special == {"bos": 1, "eos": 0, "eot": hell}


def test_special_tokens_without_a_tokenizer_config(tmp_path: Path) -> None:
    """special_tokens_map.json, then config.json."""
    folder = write(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    assert read(folder, N).special == {"bos": 1, "eos": 0}
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "hello", "pad_token": "gone"}))
    assert read(folder, N).special == {"bos": 1, "eos": VOCAB.index("hello")}
    (folder / "special_tokens_map.json").unlink()
    (folder / "config.json").write_text(json.dumps(config(eos_token_id=None)))
    with pytest.raises(BrokenModelFile, match="names no token that ends a text"):
        read(folder, N)


def test_templates(tmp_path: Path) -> None:
    """A file of its own goes first; named ones are kept."""
    folder = write(tmp_path)
    file = folder / "tokenizer_config.json"
    names = json.loads(file.read_text())
    named = [
        {"name": "default", "template": "D"},
        {"name": "tool_use", "template": "T"},
        {"name": "../x", "template": "X"},
    ]
    file.write_text(json.dumps({**names, "chat_template": named}))
    vocabulary = read(folder, N)
    assert (vocabulary.chat_template, vocabulary.more_templates) == ("D", {"tool_use": "T"})
    (folder / "chat_template.jinja").write_text("FILE")
    assert read(folder, N).chat_template == "FILE"
    (folder / "chat_template.jinja").write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(BrokenModelFile, match="too much for a template"):
        read(folder, N)
    (folder / "chat_template.jinja").unlink()
    names.pop("chat_template")
    file.write_text(json.dumps(names))
    assert read(folder, N).chat_template is None


def bpe(**changes: Any) -> dict[str, Any]:
    """Another model section."""
    return {"model": {**tokenizer()["model"], **changes}}


def added(text: str) -> dict[str, Any]:
    """An added token of that text at id 0."""
    return {"added_tokens": [{"id": 0, "content": text, "special": True}]}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "id past the embedding": (bpe(vocab={"x": N}), f"has the id {N}, but the embedding has {N} rows"),
    "id that is no number": (bpe(vocab={"x": "1"}), "has the id '1'"),
    "negative id": (bpe(vocab={"x": -1}), "has the id -1"),
    "merge of three": (bpe(merges=["a b c"]), "a merge makes no sense: a b c"),
    "merge of numbers": (bpe(merges=[[1, 2]]), "a merge makes no sense"),
    "added token without a text": ({"added_tokens": [{"id": 1}]}, "an added token makes no sense"),
    "the same text twice": (added("hello"), "1 tokens of the tokenizer have the same text"),
    "half a surrogate": (added("\ud800"), "token 0 of the tokenizer is not text"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damage(tmp_path: Path, case: str) -> None:
    """Each with its own sentence."""
    changes, message = BROKEN[case]
    with pytest.raises(BrokenModelFile, match=message):
        read(words(tmp_path, **changes), N)


SPLIT = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated"}
LEVEL = {"type": "ByteLevel", "use_regex": False}
NEITHER: dict[str, Any] = {"pre_tokenizer": None, "decoder": None}

UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "unigram": ({"model": {"type": "Unigram", "vocab": [["a", 0.1]]}}, "of type 'Unigram': only BPE"),
    "word pieces": ({"model": {"type": "WordPiece", "vocab": {"a": 1}}}, "of type 'WordPiece'"),
    "marks in words": (bpe(end_of_word_suffix="</w>"), "marks parts of words"),
    "neither kind": (NEITHER, "neither byte-level nor falls back to bytes"),
    "lower case": ({"normalizer": {"type": "Lowercase"}}, "the normalizer Lowercase has no counterpart"),
    "space in front": ({"pre_tokenizer": {**LEVEL, "add_prefix_space": True}}, "adds a space in front"),
    "other splitting": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, LEVEL]}},
        r"text is split by x\+, for which llama.cpp has no",
    ),
    "no byte tokens": ({**NEITHER, **bpe(byte_fallback=True)}, "0 of 256 byte tokens"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_llama_cpp_could_not_split_the_same_way(tmp_path: Path, case: str) -> None:
    """Is refused rather than converted wrongly."""
    changes, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModel, match=message):
        read(words(tmp_path, **changes), N)


@pytest.mark.parametrize(
    "normalizer", [{"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}]
)
def test_a_tokenizer_that_composes_has_a_name_that_says_so(
    tmp_path: Path, normalizer: dict[str, Any]
) -> None:
    """llama.cpp splits alike under both names."""
    plain = read(words(tmp_path, normalizer={"type": "Sequence", "normalizers": []}), N)
    vocabulary = read(words(tmp_path, normalizer=normalizer), N)
    assert (plain.pre, vocabulary.pre) == ("gpt-2", "olmo")
    assert not plain.notes
    assert not vocabulary.notes


def test_where_no_name_says_that_it_composes_a_note_does(tmp_path: Path) -> None:
    """llama.cpp has no such name with Llama 3's splitting."""
    split = {"type": "Split", "pattern": {"Regex": hf_models.REGEXES["llama-bpe"]}, "behavior": "Isolated"}
    steps = {"type": "Sequence", "pretokenizers": [split, LEVEL]}
    vocabulary = read(words(tmp_path, normalizer={"type": "NFC"}, pre_tokenizer=steps), N)
    assert vocabulary.pre == "dbrx"
    (note,) = vocabulary.notes
    assert "composes characters (NFC)" in note


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    """Says which files it looked for."""
    with pytest.raises(FileNotFoundError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        read(tmp_path, N)


@pytest.mark.parametrize("kind", [hf_models.GPT2_LIKE, hf_models.SMOLLM, hf_models.LLAMA3, hf_models.QWEN2])
@pytest.mark.oracle
def test_the_pre_tokenizer_is_known_by_what_it_says(tmp_path: Path, kind: str) -> None:
    """As `tokenizers` writes it."""
    n = hf_models.save_bpe(tmp_path, kind, bos=True)
    vocabulary = read(tmp_path, n)
    assert vocabulary.pre == kind
    assert vocabulary.add_bos
    assert vocabulary.types[n - 1] == TokenType.USER_DEFINED
    assert vocabulary.tokens[n - 1] == "<tool>"


def test_llama3_without_whole_words_has_another_name() -> None:
    """The expression is the same; whether whole words skip the merges is not."""
    split = {"type": "Split", "pattern": {"Regex": hf_models.REGEXES["llama-bpe"]}, "behavior": "Isolated"}
    section = {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "use_regex": False}]}
    assert name_of(section, ignore_merges=True, composes=False, where="x") == "llama-bpe"
    assert name_of(section, ignore_merges=False, composes=False, where="x") == "dbrx"


def test_qwen2_without_composing_has_another_name() -> None:
    """Distilled models have Qwen2's splitting, and another tokenizer's lack of normalization."""
    split = {"type": "Split", "pattern": {"Regex": hf_models.REGEXES["qwen2"]}, "behavior": "Isolated"}
    section = {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "use_regex": False}]}
    assert name_of(section, ignore_merges=False, composes=True, where="x") == "qwen2"
    assert name_of(section, ignore_merges=False, composes=False, where="x") == "deepseek-r1-qwen"


@pytest.mark.oracle
def test_sentencepiece_as_json_and_as_its_own_file(tmp_path: Path) -> None:
    """The same tokens and types either way; scores in the same order; white space is never matched as "▁"."""
    n = hf_models.save_sentencepiece(tmp_path / "json")
    hf_models.save_sentencepiece(tmp_path / "model", as_json=False)
    assert not (tmp_path / "json" / "tokenizer.model").exists()
    first, second = read(tmp_path / "json", n + 1), read(tmp_path / "model", n + 1)
    assert first.model == second.model == "llama"
    assert second.special == {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
    assert first.special == {**second.special, "mask": n}  # which transformers adds
    assert first.add_bos
    assert second.add_bos
    assert not first.add_space_prefix
    assert not second.add_space_prefix
    spaces = first.tokens.index("▁▁")
    assert second.tokens[spaces] == "  "
    assert (first.types[spaces], second.types[spaces]) == (TokenType.NORMAL, TokenType.USER_DEFINED)
    for i in range(n):
        if i != spaces:
            assert (first.tokens[i], first.types[i]) == (second.tokens[i], second.types[i]), i
    assert first.notes == ()
    normal = [
        i for i in range(n) if first.types[i] == TokenType.NORMAL and len(first.tokens[i]) > 1 and i != spaces
    ]
    assert sorted(normal, key=lambda i: -first.scores[i]) == sorted(normal, key=lambda i: -second.scores[i])
    assert second.types[n] == TokenType.UNUSED


@pytest.mark.oracle
def test_damaged_sentencepiece_files(tmp_path: Path) -> None:
    """Cut off anywhere, or something else: one line, no traceback."""
    n = hf_models.save_sentencepiece(tmp_path, as_json=False)
    whole = (tmp_path / "tokenizer.model").read_bytes()
    for length in (0, 1, 2, 50, 1000, len(whole) - 3):
        (tmp_path / "tokenizer.model").write_bytes(whole[:length])
        with pytest.raises((BrokenModelFile, UnsupportedModel)):
            read(tmp_path, n)
    (tmp_path / "tokenizer.model").write_bytes(b"\xff" * 100)
    with pytest.raises(BrokenModelFile, match="is damaged or no SentencePiece model"):
        read(tmp_path, n)
    (tmp_path / "tokenizer.model").write_bytes(whole)
    with pytest.raises(BrokenModelFile, match="but the embedding has 100 rows"):
        read(tmp_path, 100)
