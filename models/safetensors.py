"""Reads the header of a safetensors file, trusting nothing in it.

Format (https://github.com/huggingface/safetensors): 8 bytes of length, that much JSON, then the data, which
the tensors must cover without holes or overlaps.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from models.errors import BrokenModelFile, cut_off, damaged

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMS = 8

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the file."""

    name: str
    dtype: str
    """As the file says it: a key of `ITEM_BYTES`."""
    shape: tuple[int, ...]
    offset: int
    """Of the data in the file."""
    n_bytes: int


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file, by name.

    Raises:
        FileNotFoundError: there is no such file.
        BrokenModelFile: it isn't safetensors, it is damaged, or it is cut off.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}: check the name")
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise BrokenModelFile(
                f"{path} is {f'cut off after {size} bytes' if size else 'empty'}: download it again"
            )
        (length,) = struct.unpack("<Q", prefix)
        if length > MAX_HEADER_BYTES:
            raise damaged(path, f"its header would have {length} bytes")
        if 8 + length > size:
            raise cut_off(path, f"its header has {length} bytes, the file only {size}")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise damaged(path, "its header is no JSON") from None
    if not isinstance(header, dict):
        raise damaged(path, "its header is no JSON object")
    entries = {
        name: _entry(path, name, value, 8 + length)
        for name, value in header.items()
        if name != "__metadata__"
    }
    _check_cover(path, entries, 8 + length, size)
    return entries


def _entry(path: Path, name: str, value: Any, base: int) -> Entry:
    broken = damaged(path, f"its entry for {name!r} makes no sense")
    if not isinstance(value, dict):
        raise broken
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise broken
    if dtype not in ITEM_BYTES:
        raise BrokenModelFile(
            f"{path} is damaged, or newer than is known here ({name} is of the unknown type {dtype!r})"
        )
    start, stop = offsets
    if len(shape) > MAX_DIMS or math.prod(shape) * ITEM_BYTES[dtype] != stop - start:
        raise damaged(path, f"{name} is {dtype} {shape}, but has {stop - start} bytes")
    return Entry(name, dtype, tuple(shape), base + start, stop - start)


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**62 for n in value
    )


def _check_cover(path: Path, entries: dict[str, Entry], base: int, size: int) -> None:
    """The data must be covered from end to end: a hole or an overlap is damage, or a trick."""
    at = base
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.n_bytes)):
        if entry.offset != at:
            raise damaged(path, f"{entry.name} is not behind the one before it")
        at += entry.n_bytes
    if at > size:
        raise cut_off(path, f"it should have {at} bytes, and has {size}")
    if at < size:
        raise damaged(path, f"{size - at} bytes follow the last tensor")
