"""JSON objects from files that strangers wrote."""

import json
from pathlib import Path
from typing import Any

from models.errors import BrokenModelFile

MAX_BYTES = 256 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that strangers wrote.

    Raises:
        FileNotFoundError: no such file.
        BrokenModelFile: too large, not JSON, or not an object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the folder is no complete checkpoint")
    if path.stat().st_size > MAX_BYTES:
        raise BrokenModelFile(f"{path} has over {MAX_BYTES >> 20} MiB, too much for a file of its kind")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BrokenModelFile(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BrokenModelFile(f"{path} holds {type(value).__name__}, not an object")
    return value


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object, or {} where there is no such file.

    Raises:
        BrokenModelFile: too large, not JSON, or not an object.
    """
    return read_json(path) if path.is_file() else {}
