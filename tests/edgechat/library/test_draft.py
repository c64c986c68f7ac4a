"""Which model drafts for another, where none is named."""

from pathlib import Path

import pytest

from edgechat import settings
from edgechat.errors import NotFoundError
from edgechat.library.draft import draft_for, smaller_sibling
from edgechat.library.local import ModelFile
from tests.edgechat.library.tiny_models import gguf
from tests.oracles.raw_gguf import tiny_llama


def model(folder: Path, name: str, size: int, tokenizer: str = "gpt2") -> ModelFile:
    """A file of `size` thousands of bytes; its header is all that is read."""
    path = folder / f"{name}.gguf"
    raw = gguf(tiny_llama(tokenizer))
    path.write_bytes(raw + bytes(max(0, size * 1000 - len(raw))))
    return ModelFile(name, path, path.stat().st_size)


@pytest.fixture
def big(tmp_path: Path) -> ModelFile:
    return model(tmp_path, "Qwen2.5-Coder-7B", 8000)


def test_finds_the_smallest_of_the_same_vocabulary(tmp_path: Path, big: ModelFile) -> None:
    middle = model(tmp_path, "qwen2.5-1.5b", 1500)
    small = model(tmp_path, "qwen2.5-0.5b", 500)
    assert smaller_sibling(big.path, [big, middle, small]) == small.path


@pytest.mark.parametrize(
    ("name", "size", "tokenizer"),
    [
        ("qwen2.5-3b", 3000, "gpt2"),  # too big to pay
        ("qwen-of-another-kind", 500, "llama"),
        ("smollm2-135m", 500, "gpt2"),  # another family: not even looked into
    ],
)
def test_takes_none_that_can_not_help(
    tmp_path: Path, big: ModelFile, name: str, size: int, tokenizer: str
) -> None:
    assert smaller_sibling(big.path, [big, model(tmp_path, name, size, tokenizer)]) is None


def test_a_damaged_file_is_passed_over(tmp_path: Path, big: ModelFile) -> None:
    damaged = tmp_path / "qwen-broken.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    good = model(tmp_path, "qwen2.5-0.5b", 500)
    assert smaller_sibling(big.path, [ModelFile("qwen-broken", damaged, 104), good]) == good.path
    assert smaller_sibling(damaged, [good]) is None


def test_words(tmp_path: Path, big: ModelFile) -> None:
    assert draft_for("off", big.path) == ("off", False)
    assert draft_for("ngram", big.path) == ("ngram", False)
    assert draft_for("auto", big.path) == ("ngram", False)
    small = model(tmp_path, "qwen2.5-0.5b", 500)
    assert draft_for(str(small.path), big.path) == (str(small.path), False)
    with pytest.raises(NotFoundError, match="the draft model: no model named 'qwne'"):
        draft_for("qwne", big.path)


def test_auto_looks_into_the_library(tmp_path: Path, big: ModelFile, edgechat_home: Path) -> None:
    folder = edgechat_home / "data" / "models"
    folder.mkdir(parents=True)
    small = model(folder, "qwen2.5-0.5b", 500)
    assert draft_for("auto", big.path) == (str(small.path), True)


def test_the_settings_decide_where_the_command_line_does_not(big: ModelFile, edgechat_home: Path) -> None:
    (edgechat_home / "config").mkdir(parents=True)
    (edgechat_home / "config" / "config.toml").write_text('[engine]\ndraft = "off"\n')
    engine = settings.load().engine
    assert engine.load(big.path).draft == "off"
    assert engine.load(big.path, draft="ngram").draft == "ngram"
    assert engine.load(big.path).cost_folder.startswith(str(edgechat_home))
