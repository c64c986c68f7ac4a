"""Writes GGUF version 3: the header first, then each tensor's bytes as they come.

The sizes of all tensors are known beforehand, so the header is final when it is written, nothing is kept in
memory, and the file's exact size is known before its first byte.

Format: ggml/docs/gguf.md, little-endian.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from models.ggml_types import BLOCKS, GGMLType
from models.gguf import GGUFHeader, LazyArray, ValueType

ALIGNMENT = 32

FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}

Scalar = int | float | bool | str
Encoded = bytes
"""A value's type and its bytes, as they stand in the file."""


def encode(value: Scalar | Sequence[Scalar], kind: ValueType | None = None) -> Encoded:
    """A value as it stands in the file.

    Args:
        value: a number, a text, or a sequence of one of them.
        kind: of the value, or of the sequence's elements; None: by the value's Python type, where whole
            numbers become UINT32 (INT32 in a sequence) and others FLOAT32.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        kind = _kind(value, ValueType.UINT32) if kind is None else kind
        return struct.pack("<I", kind) + _pack(value, kind)
    kind = _kind(value[0], ValueType.INT32) if kind is None else kind
    head = struct.pack("<IIQ", ValueType.ARRAY, kind, len(value))
    if kind is ValueType.STRING:
        return head + b"".join(_pack(item, kind) for item in value)
    return head + struct.pack(f"<{len(value)}{FORMATS[kind]}", *value)


def _kind(value: Scalar, whole: ValueType) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, str):
        return ValueType.STRING
    return whole if isinstance(value, int) else ValueType.FLOAT32


def _pack(value: Scalar, kind: ValueType) -> bytes:
    if kind is ValueType.STRING:
        raw = str(value).encode()
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack(f"<{FORMATS[kind]}", value)


def copied(header: GGUFHeader, without: Iterable[str] = ()) -> dict[str, Encoded]:
    """The metadata of another file, byte by byte, except for some keys."""
    skipped = {"general.alignment", *without}
    values: dict[str, Encoded] = {}
    with header.path.open("rb") as file:
        for key, field in header.fields.items():
            if key in skipped:
                continue
            if isinstance(field.value, LazyArray):
                array = field.value
                file.seek(array.offset)
                head = struct.pack("<IIQ", ValueType.ARRAY, array.type, array.count)
                values[key] = head + file.read(array.n_bytes)
            else:
                values[key] = encode(field.value, field.type)
    return values


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as numpy has it."""
    type: GGMLType

    @property
    def n_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Of its data."""
        block = BLOCKS[self.type]
        return self.n_elements // block.elements * block.n_bytes


def padded(n_bytes: int) -> int:
    """Up to the next multiple of the alignment."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def header_bytes(metadata: Mapping[str, Encoded], tensors: Sequence[OutputTensor]) -> bytes:
    """All that stands before the data, its padding included."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_pack(key, ValueType.STRING), value]
    offset = 0
    for tensor in tensors:
        parts += [
            _pack(tensor.name, ValueType.STRING),
            struct.pack("<I", len(tensor.shape)),
            struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)),
            struct.pack("<IQ", tensor.type, offset),
        ]
        offset += padded(tensor.n_bytes)
    raw = b"".join(parts)
    return raw + bytes(padded(len(raw)) - len(raw))


def data_bytes(tensors: Iterable[OutputTensor]) -> int:
    """Of all tensors, their padding included."""
    return sum(padded(tensor.n_bytes) for tensor in tensors)


def write_tensor(file: BinaryIO, tensor: OutputTensor, chunks: Iterable[bytes | memoryview]) -> None:
    """Append one tensor's data and its padding.

    Raises:
        ValueError: the chunks don't make up the tensor: our own fault.
    """
    written = 0
    for chunk in chunks:
        written += file.write(chunk)
    if written != tensor.n_bytes:
        raise ValueError(f"{tensor.name}: {written} bytes were written for {tensor.n_bytes}")
    file.write(bytes(padded(written) - written))
