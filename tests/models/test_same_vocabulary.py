"""Whether two models' tokens mean the same, by files whose every byte is ours."""

from pathlib import Path

import pytest

from models.gguf import read_header
from models.same_vocabulary import vocabulary_difference
from tests.oracles.raw_gguf import ARRAY, STRING, U32, File, array, tiny_llama


def tokens(n: int, **changed: str) -> list[str]:
    found = [f"token {i}" for i in range(n)]
    for index, text in changed.items():
        found[int(index[1:])] = text
    return found


def model(folder: Path, name: str, texts: list[str], *, kind: str = "gpt2", eos: int = 2) -> File:
    file = tiny_llama("gpt2")
    file.put("tokenizer.ggml.model", STRING, kind)
    file.put("tokenizer.ggml.tokens", ARRAY, array(STRING, texts))
    file.put("tokenizer.ggml.eos_token_id", U32, eos)
    (folder / name).write_bytes(file.header() + file.data())
    return file


def difference(folder: Path) -> str:
    return vocabulary_difference(read_header(folder / "a.gguf"), read_header(folder / "b.gguf"))


@pytest.mark.parametrize(
    ("other", "options", "said"),
    [
        (tokens(300), {}, ""),
        (tokens(428), {}, ""),  # padded
        (tokens(172), {}, ""),
        (tokens(300, _0="<unk>", _4="<s>"), {}, ""),  # control tokens are named as a family likes
        (tokens(429), {}, "it has 429 tokens, not 300"),
        (tokens(300, _7="7 nekot"), {}, "its token 7 is '7 nekot', not 'token 7'"),
        (tokens(300, _299="x", _41="y"), {}, "its token 41 is 'y', not 'token 41'"),
        (tokens(300, _5="token 55"), {}, "its token 5 is 'token 55', not 'token 5'"),
        (tokens(300), {"kind": "llama"}, "its tokenizer is llama, not gpt2"),
        (tokens(300), {"eos": 3}, "its texts end with token 3, not 2"),
        (tokens(310), {"eos": 3}, "its texts end with token 3, not 2"),
    ],
)
def test_says_what_differs_first(tmp_path: Path, other: list[str], options: dict, said: str) -> None:
    model(tmp_path, "a.gguf", tokens(300))
    model(tmp_path, "b.gguf", other, **options)
    assert difference(tmp_path) == said


def test_a_file_without_a_vocabulary_fits_nothing(tmp_path: Path) -> None:
    model(tmp_path, "a.gguf", tokens(300))
    file = model(tmp_path, "b.gguf", tokens(300)).drop("tokenizer.ggml.tokens")
    (tmp_path / "b.gguf").write_bytes(file.header() + file.data())
    assert difference(tmp_path) == "a file has no vocabulary"
