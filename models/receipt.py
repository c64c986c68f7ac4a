"""The receipt that edgechat leaves in a GGUF file: what it was made of, and how."""

import json
from typing import Any

from models.gguf import GGUFHeader

KEY = "edgechat.receipt"
"""In the metadata: JSON in a text."""


def receipt_in(header: GGUFHeader) -> dict[str, Any] | None:
    """The receipt of a file that edgechat wrote; None: there is none that can be read."""
    text = header.metadata.get(KEY)
    if not isinstance(text, str):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
