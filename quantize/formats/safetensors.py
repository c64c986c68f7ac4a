"""Writes safetensors files: a whole model in one, or in shards with an index.

Format (https://github.com/huggingface/safetensors): 8 bytes of length, that much JSON, then the data.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from models import safetensors
from models.checkpoint import INDEX

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip

COPY_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to be written. bfloat16 is held in its 16 bits, as uint16, and must be said."""

    array: npt.NDArray[Any]
    dtype: str = ""
    """As the file calls it; "": by the array's own."""

    @property
    def stored_dtype(self) -> str:
        """As the file calls it."""
        return self.dtype or DTYPES[self.array.dtype.name]


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file, flushed by nobody.

    Args:
        path: replaced if it is there.
        tensors: in the order in which they shall stand.
    """
    entries = [
        (name, tensor.stored_dtype, list(tensor.array.shape), tensor.array.nbytes)
        for name, tensor in tensors.items()
    ]
    with path.open("wb") as file:
        file.write(header_bytes(entries))
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data)


def header_bytes(entries: Iterable[tuple[str, str, list[int], int]]) -> bytes:
    """All that stands before the data.

    Args:
        entries: name, dtype, shape and size of each tensor, in order.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, n_bytes in entries:
        if math.prod(shape) * safetensors.ITEM_BYTES[dtype] != n_bytes:
            raise ValueError(f"{name}: {n_bytes} bytes for {dtype} {shape}")
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def join(parts: Sequence[Path], output: Path) -> None:
    """Put the tensors of several files into one, without holding them in memory.

    Raises:
        BrokenModelFile: a part is damaged.
        ValueError: two parts have a tensor of the same name.
    """
    read = [(part, entry) for part in parts for entry in safetensors.read_header(part).values()]
    if len({entry.name for _, entry in read}) != len(read):
        raise ValueError(f"a tensor stands in more than one of the parts of {output}")
    with output.open("wb") as file:
        file.write(header_bytes((e.name, e.dtype, list(e.shape), e.n_bytes) for _, e in read))
        for part, entry in read:
            with part.open("rb") as source:
                for chunk in _chunks(source, entry):
                    file.write(chunk)


def _chunks(source: BinaryIO, entry: safetensors.Entry) -> Iterator[bytes]:
    source.seek(entry.offset)
    left = entry.n_bytes
    while left:
        chunk = source.read(min(left, COPY_BYTES))
        if not chunk:
            raise OSError(f"{entry.name} ended early")
        left -= len(chunk)
        yield chunk


def write_index(folder: Path, files: Sequence[str]) -> None:
    """Write the index of a model in shards.

    Raises:
        BrokenModelFile: a shard is damaged.
    """
    weight_map: dict[str, str] = {}
    total = 0
    for file in files:
        for entry in safetensors.read_header(folder / file).values():
            weight_map[entry.name] = file
            total += entry.n_bytes
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
