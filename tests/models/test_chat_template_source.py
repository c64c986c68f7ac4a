"""Where a checkpoint keeps its chat template."""

import json
from pathlib import Path

import pytest

from models.chat_template import from_directory
from models.errors import BrokenModelFile


def test_none_where_there_is_no_file(tmp_path: Path) -> None:
    assert from_directory(tmp_path) is None


def test_the_jinja_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("A {{ 'é' }}\r\n", encoding="utf-8", newline="")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "B"}))
    assert from_directory(tmp_path) == "A {{ 'é' }}\n"


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
def test_a_text_in_json(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps({"chat_template": "B"}))
    assert from_directory(tmp_path) == "B"


def test_the_default_of_several(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert from_directory(tmp_path) == "D"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"chat_template": None},
        {"chat_template": []},
        [],
        {"chat_template": [{"name": "rag", "template": ""}]},
    ],
)
def test_none_where_the_settings_have_none(tmp_path: Path, settings: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert from_directory(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe{}", b"[" * 100_000, b'{"chat_template": 1}', b'{"chat_template": ["x"]}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(BrokenModelFile, match=r"tokenizer_config\.json"):
        from_directory(tmp_path)


@pytest.mark.oracle
def test_what_transformers_saves_is_found(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    )
    tokenizer.chat_template = "{{ messages[0].content }}\n"
    tokenizer.save_pretrained(tmp_path)
    assert from_directory(tmp_path) == tokenizer.chat_template
