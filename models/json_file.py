"""JSON objects from files that strangers wrote."""

import json
from pathlib import Path
from typing import Any

from models.errors import BrokenModelFile, damaged

MAX_BYTES = 256 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that strangers wrote.

    Raises:
        FileNotFoundError: no such file.
        BrokenModelFile: too large, not JSON, or not an object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: download the rest of the checkpoint")
    if path.stat().st_size > MAX_BYTES:
        raise BrokenModelFile(
            f"{path} has over {MAX_BYTES >> 20} MiB, too much for a file of its kind: download it again"
        )
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise damaged(path, "it holds no JSON object")
    return value


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object, or {} where there is no such file.

    Raises:
        BrokenModelFile: too large, not JSON, or not an object.
    """
    return read_json(path) if path.is_file() else {}
