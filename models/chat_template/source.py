"""Where a checkpoint keeps its chat template."""

import json
from pathlib import Path
from typing import Any

from models.errors import BrokenModelFile

_MAX_BYTES = 2**24


def from_directory(path: Path) -> str | None:
    """The source of a checkpoint's chat template; None where it has none.

    `chat_template.jinja` comes before `chat_template.json` and `tokenizer_config.json`, as in transformers;
    of several templates it is the one named "default".

    Raises:
        BrokenModelFile: a file that should hold it can't be read.
    """
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        return _read(jinja)
    for name in ("chat_template.json", "tokenizer_config.json"):
        file = path / name
        if file.is_file() and (source := _in_json(file)) is not None:
            return source
    return None


def _in_json(file: Path) -> str | None:
    try:
        settings = json.loads(_read(file))
    except (ValueError, RecursionError):
        raise BrokenModelFile(f"{file}: this is not JSON") from None
    value = settings.get("chat_template") if isinstance(settings, dict) else None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        named = dict(_name_and_template(file, entry) for entry in value)
        return named.get("default")
    raise BrokenModelFile(f"{file}: chat_template is neither a text nor a list of named texts")


def _name_and_template(file: Path, entry: Any) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(template)}:
            return name, template
    raise BrokenModelFile(f"{file}: an entry of chat_template has no name and template")


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise BrokenModelFile(f"{file}: too large for what it should hold")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BrokenModelFile(f"{file}: this is not UTF-8") from None
    except OSError as error:
        raise BrokenModelFile(f"{file}: can't be read ({error.strerror})") from None
