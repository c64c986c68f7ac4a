"""A GGUF file without what differs from run to run."""

from pathlib import Path

KEY = b"edgechat.receipt"


def without_receipt(path: Path) -> bytes:
    """The file, its receipt blanked: that tells of times, and of the source's own files.

    Format: the key, a value type (4 bytes, 8 is a string), the string's length (8 bytes), the string.
    """
    raw = path.read_bytes()
    at = raw.index(KEY) + len(KEY)
    assert int.from_bytes(raw[at : at + 4], "little") == 8
    length = int.from_bytes(raw[at + 4 : at + 12], "little")
    begin = at + 12
    return raw[:begin] + bytes(length) + raw[begin + length :]
