"""What a GGUF header says, as records. `models.gguf` reads them from a file."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from models.errors import BrokenModelFile
from models.ggml_types import GGMLType


class ValueType(IntEnum):
    """The type of a metadata value, as its number stands in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def shown(self) -> str:
        """In words: "a whole number of 32 bits"."""
        return SHOWN[self]


SHOWN = {
    ValueType.UINT8: "a whole number of 8 bits",
    ValueType.INT8: "a signed whole number of 8 bits",
    ValueType.UINT16: "a whole number of 16 bits",
    ValueType.INT16: "a signed whole number of 16 bits",
    ValueType.UINT32: "a whole number of 32 bits",
    ValueType.INT32: "a signed whole number of 32 bits",
    ValueType.FLOAT32: "a fraction of 32 bits",
    ValueType.BOOL: "yes or no",
    ValueType.STRING: "a text",
    ValueType.ARRAY: "a list",
    ValueType.UINT64: "a whole number of 64 bits",
    ValueType.INT64: "a signed whole number of 64 bits",
    ValueType.FLOAT64: "a fraction of 64 bits",
}
SCALARS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
U32 = SCALARS[ValueType.UINT32]
U64 = SCALARS[ValueType.UINT64]

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class LazyArray:
    """An array of the metadata that is still in its file."""

    path: Path
    type: ValueType
    """Of the elements."""
    count: int
    offset: int
    """Of the first element in the file."""
    n_bytes: int

    def __len__(self) -> int:
        return self.count

    def read(self) -> list[Scalar]:
        """All elements; text that isn't UTF-8 comes with replacement characters.

        Raises:
            BrokenModelFile: the file has changed since its header was read.
        """
        if self.type is ValueType.STRING:
            return [raw.decode("utf-8", "replace") for raw in self.read_bytes()]
        return list(self.read_numbers())

    def read_numbers(self) -> tuple[int | float, ...]:
        """All elements of an array of numbers.

        Raises:
            BrokenModelFile: the file has changed since its header was read.
            TypeError: the elements are strings.
        """
        if self.type is ValueType.STRING:
            raise TypeError("an array of strings, not of numbers")
        return struct.unpack(f"<{self.count}{SCALARS[self.type].format[-1]}", self.raw())

    def read_bytes(self) -> list[bytes]:
        """All elements of an array of strings, undecoded.

        Raises:
            BrokenModelFile: the file has changed since its header was read.
            TypeError: the elements aren't strings.
        """
        if self.type is not ValueType.STRING:
            raise TypeError(f"an array of {self.type.name}, not of strings")
        raw, at, unpack = self.raw(), 0, U64.unpack_from
        strings: list[bytes] = []
        try:
            for _ in range(self.count):
                start = at + 8
                at = start + unpack(raw, at)[0]
                strings.append(raw[start:at])
        except struct.error:
            at = -1
        if at != len(raw):
            raise BrokenModelFile(f"{self.path}: changed while it was being read: try again")
        return strings

    def raw(self) -> bytes:
        """The bytes of all elements as they are in the file.

        Raises:
            BrokenModelFile: the file has changed since its header was read.
        """
        with open_model(self.path) as file:
            file.seek(self.offset)
            raw = file.read(self.n_bytes)
        if len(raw) != self.n_bytes:
            raise BrokenModelFile(f"{self.path}: changed while it was being read: try again")
        return raw


Value = Scalar | LazyArray


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of the metadata."""

    value: Value
    type: ValueType
    offset: int
    """Of the key in the file."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is, and what it is."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as ggml has it: numpy's shape reversed."""
    type: GGMLType
    offset: int
    """Of the data, from the header's `data_offset`."""
    n_bytes: int
    record_offset: int
    """Of this description in the file."""

    @property
    def n_elements(self) -> int:
        """How many numbers it holds."""
        count = 1
        for n in self.shape:
            count *= n
        return count


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All that a GGUF file says of itself before its data begins."""

    path: Path
    version: int
    fields: Mapping[str, Field]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    """Where the tensors' data begins."""
    n_header_bytes: int
    """Where the header ends; padding up to `data_offset` follows."""
    file_size: int
    metadata: Mapping[str, Value] = field(repr=False)

    @property
    def architecture(self) -> str:
        """`general.architecture`, or "" where the file doesn't say."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    def hyper(self, name: str) -> Value | None:
        """A value under the architecture's own prefix: `hyper("block_count")` is `llama.block_count`."""
        return self.metadata.get(f"{self.architecture}.{name}")


def open_model(path: Path) -> BinaryIO:
    """Open a file that should be a model.

    Raises:
        FileNotFoundError: there is no such file, or it can't be read.
        BrokenModelFile: it is something else than a file.
    """
    try:
        # Before opening: opening a FIFO would wait for a writer for ever.
        if path.exists() and not path.is_file():
            raise BrokenModelFile(f"{path} is no regular file: give a GGUF file")
        return path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}: check the name") from None
    except OSError as error:
        raise FileNotFoundError(f"{path} can't be read: {error.strerror}") from None
