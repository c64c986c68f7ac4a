"""What is verified: sound models pass, each rule's message names what, where and what to do."""

import re
from pathlib import Path

import pytest

from models.errors import BrokenModelFile, UnsupportedModel
from models.verify import split_parts, verify_gguf
from tests.oracles.damaged_structure import FILE, TENSORS
from tests.oracles.damaged_values import BPE, EXPERTS, GEMMA, NUMBERS, TOKENS
from tests.oracles.gguf_changes import Cases
from tests.oracles.raw_gguf import ARRAY, I32, STRING, U16, U32, File, Tensor, array, tiny_llama


def _write(path: Path, file: File) -> Path:
    path.write_bytes(file.header() + file.data())
    return path


def test_the_starter_is_sound(starter_gguf: Path) -> None:
    assert verify_gguf(starter_gguf).architecture == "llama"


def test_gemma_is_sound(gemma_gguf: Path) -> None:
    assert verify_gguf(gemma_gguf).architecture == "gemma3"


@pytest.mark.parametrize(
    ("tokenizer", "architecture", "experts"),
    [
        ("llama", "llama", 0),
        ("gpt2", "llama", 0),
        ("gpt2", "qwen2", 0),
        ("llama", "gemma3", 0),
        ("llama", "llama", 4),
    ],
)
def test_tiny_models_are_sound(tmp_path: Path, tokenizer: str, architecture: str, experts: int) -> None:
    path = _write(tmp_path / "tiny.gguf", tiny_llama(tokenizer, architecture, experts))
    assert len(verify_gguf(path).tensors) == {0: 20, 4: 22}[experts] + {"qwen2": 6, "gemma3": 8}.get(
        architecture, 0
    )


@pytest.mark.parametrize(
    ("cases", "case", "message"),
    [
        (
            FILE,
            "tensors-2^63",
            "it has 9223372036854775808 tensors, of 131072 at most, at byte 8",
        ),
        (FILE, "key-twice", "it has the key 'general.architecture' twice, at byte 7182"),
        (FILE, "text-2^63", "a is a text of 9223372036854775808 bytes, over the limit, at byte 7195"),
        (
            FILE,
            "alignment-3",
            "general.alignment is 3: it must be a power of two, as a whole number of 32 bits, at byte 7182",
        ),
        (FILE, "split-name", "is one of 3 parts, but its name doesn't end in -00001-of-00003.gguf"),
        (
            TENSORS,
            "offset-unaligned",
            "blk.0.attn_norm.weight is at offset 17, no multiple of 32, at byte 7289",
        ),
        (
            TENSORS,
            "offset-of-another",
            "blk.0.attn_norm.weight is at offset 0, not 75264, over its neighbour, at byte 7289",
        ),
        (TENSORS, "block-of-256", "blk.0.attn_q.weight has rows of 64, but Q4_K comes in blocks of 256"),
        (TENSORS, "layer-missing", "llama.block_count is 2, but there are no weights of layer 1"),
        (TENSORS, "norm-in-f16", "the vector blk.0.attn_norm.weight is in F16, not in F32"),
        (NUMBERS, "layers-513", "llama.block_count is 513: 1 to 512 are possible, at byte 105"),
        (
            NUMBERS,
            "heads-3",
            "llama.attention.head_count_kv is 2 in layer 0, which doesn't divide the 3 heads",
        ),
        (
            NUMBERS,
            "scaling-unknown",
            "llama.rope.scaling.type is 'su': linear, longrope, none, yarn are known",
        ),
        (NUMBERS, "epsilon-nan", "llama.attention.layer_norm_rms_epsilon is no number: 0 to 1 are possible"),
        (EXPERTS, "more-used-than-there-are", "llama.expert_used_count is 5, of 4 experts"),
        (TOKENS, "scores-short", "tokenizer.ggml.scores has 10 entries for 293 tokens"),
        (TOKENS, "byte-minus-1", "tokenizer.ggml.tokens has '<0x-1>' as token 20, which stands for a byte"),
        (TOKENS, "twice", "tokenizer.ggml.tokens has 'word0' twice, as 259 and 280"),
        (TOKENS, "twice-to-c", "tokenizer.ggml.tokens has 'word0' twice, as 259 and 280"),
        (TOKENS, "bos-out-of-range", "tokenizer.ggml.bos_token_id is 293, but there are 293 tokens"),
        (TOKENS, "template-over-1-mib", "tokenizer.chat_template has 1048577 bytes: 1048576 are allowed"),
        (BPE, "merges-missing", "it lacks tokenizer.ggml.merges"),
        (GEMMA, "window-0", "gemma3.attention.sliding_window is 0: 1 to 1073741824 are possible"),
    ],
)
def test_messages_say_what_and_where(tmp_path: Path, cases: Cases, case: str, message: str) -> None:
    base = {
        id(EXPERTS): ("llama", "llama", 4),
        id(BPE): ("gpt2", "qwen2", 0),
        id(GEMMA): ("llama", "gemma3", 0),
    }
    file = tiny_llama(*base.get(id(cases), ("llama", "llama", 0)))
    data = file.data()
    cases[case][1](file)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.header() + data)
    with pytest.raises(BrokenModelFile) as caught:
        verify_gguf(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert message in text
    assert "\n" not in text
    # First what to do, in plain words; behind it in parentheses what is wrong, for an engineer.
    advised = text.startswith(f"{path} is damaged: download or convert it again ({message}")
    assert advised == text.endswith(")") == ("give the parts their names back" not in text)
    assert not re.search(r"U?INT\d|FLOAT\d|STRING|ARRAY|BOOL|\bnan\b|\binf\b", text)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "new.gguf", tiny_llama().put("general.architecture", STRING, "llama99"))
    with pytest.raises(
        UnsupportedModel, match=r"of the architecture 'llama99', which this llama.cpp doesn't know"
    ):
        verify_gguf(path)


def test_a_hole_in_byte_tokens_is_found(tmp_path: Path) -> None:
    """llama.cpp would end its process when it met the byte."""
    file = tiny_llama()
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"word{number}" for number in range(34)]
    tokens[3 + 0x41] = "other"
    file.put("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))
    file.put("tokenizer.ggml.token_type", ARRAY, array(I32, [1] * len(tokens)))
    path = _write(tmp_path / "hole.gguf", file)
    with pytest.raises(BrokenModelFile, match=r"has no token for the byte 0x41"):
        verify_gguf(path)


def test_a_window_of_0_means_none_where_no_layer_slides(tmp_path: Path) -> None:
    verify_gguf(_write(tmp_path / "m.gguf", tiny_llama().put("llama.attention.sliding_window", U32, 0)))


# --- split files


def _split(folder: Path, *, total: int = 20, numbers: tuple[int, ...] = (0, 1, 2), kind: int = U16) -> Path:
    """A tiny model in three parts; where the first is."""
    whole = tiny_llama()
    folder.mkdir(exist_ok=True)
    pieces = [whole.tensors[:5], whole.tensors[5:12], whole.tensors[12:]]
    for index, (tensors, number) in enumerate(zip(pieces, numbers, strict=True)):
        part = tiny_llama() if index == 0 else File()
        part.tensors = tensors
        part.put("split.no", kind, number).put("split.count", U16, 3).put("split.tensors.count", I32, total)
        _write(folder / f"tiny-{index + 1:05}-of-00003.gguf", part)
    return folder / "tiny-00001-of-00003.gguf"


def test_split_models_are_verified_whole(tmp_path: Path) -> None:
    assert len(verify_gguf(_split(tmp_path)).tensors) == 5


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = _split(tmp_path)
    (tmp_path / "tiny-00003-of-00003.gguf").unlink()
    with pytest.raises(
        BrokenModelFile, match=r"needs 3 parts, and 1 are missing \(tiny-00003-of-00003.gguf\)"
    ):
        verify_gguf(first)


def test_a_later_part_points_to_the_first(tmp_path: Path) -> None:
    _split(tmp_path)
    with pytest.raises(
        UnsupportedModel, match=r"is not the first of its 3 parts: name tiny-00001-of-00003.gguf"
    ):
        verify_gguf(tmp_path / "tiny-00002-of-00003.gguf")


def test_parts_must_be_in_order(tmp_path: Path) -> None:
    with pytest.raises(BrokenModelFile, match=r"is not part 2 of tiny-00001-of-00003.gguf"):
        verify_gguf(_split(tmp_path, numbers=(0, 2, 1)))


def test_a_part_of_the_wrong_type_of_number(tmp_path: Path) -> None:
    with pytest.raises(
        BrokenModelFile, match=r"split.no is a whole number of 32 bits, not a whole number of 16 bits"
    ):
        verify_gguf(_split(tmp_path, kind=U32))


def test_parts_must_have_all_tensors(tmp_path: Path) -> None:
    with pytest.raises(BrokenModelFile, match=r"its parts have 20 tensors, not 21"):
        verify_gguf(_split(tmp_path, total=21))


def test_a_damaged_part_is_found(tmp_path: Path) -> None:
    first = _split(tmp_path)
    second = tmp_path / "tiny-00002-of-00003.gguf"
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(BrokenModelFile, match=r"tiny-00002-of-00003.gguf is cut off"):
        verify_gguf(first)


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    first = _split(tmp_path, total=21)
    third = File().put("split.no", U16, 2).put("split.count", U16, 3)
    third.tensors = [*tiny_llama().tensors[12:], Tensor("token_embd.weight", (64, 293))]
    _write(tmp_path / "tiny-00003-of-00003.gguf", third)
    with pytest.raises(BrokenModelFile, match=r"token_embd.weight, which another part has too"):
        verify_gguf(first)


def test_names_of_parts() -> None:
    parts = split_parts(Path("/m/x-00002-of-00003.gguf"))
    assert [part.name for part in parts] == [f"x-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert split_parts(Path("/m/x.gguf")) == ()
    assert split_parts(Path("/m/x-00001-of-00000.gguf")) == ()
