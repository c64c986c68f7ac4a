"""Reads the header of a GGUF file, trusting nothing in it.

Every length and every count is checked against the file's size before anything is allocated. Token lists
stay in the file until someone asks for them: a header of 262,144 tokens is walked, not built.

Format: ggml/docs/gguf.md (versions 2 and 3, little-endian).
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from models.errors import AGAIN, BrokenModelFile, UnsupportedModel, cut_off, damaged
from models.foreign import foreign
from models.ggml_types import BLOCKS, REMOVED_TYPES, GGMLType
from models.gguf_header import (
    SCALARS,
    U32,
    U64,
    Field,
    GGUFHeader,
    LazyArray,
    Scalar,
    TensorInfo,
    Value,
    ValueType,
    open_model,
)

__all__ = [
    "Field",
    "GGMLType",
    "GGUFHeader",
    "LazyArray",
    "Scalar",
    "TensorInfo",
    "Value",
    "ValueType",
    "read_header",
]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Far over any real file, far under what would hurt.
MAX_KEYS = 2**16
MAX_TENSORS = 2**17
MAX_KEY_BYTES = 65_535  # the format's own limit
MAX_NAME_BYTES = 63  # ggml_tensor.name holds 64 with its NUL
MAX_DIMS = 4
MAX_ARRAY = 2**24
MAX_STRING_BYTES = 2**26
MAX_HEADER_BYTES = 2**29
MAX_EAGER_BYTES = 2**27  # of strings that are built at once, all together

WINDOW = 2**20
HEAD_BYTES = 512
"""Enough to tell what a file is that is not GGUF."""


def read_header(path: str | os.PathLike[str]) -> GGUFHeader:
    """Read the header of a GGUF file.

    Raises:
        FileNotFoundError: there is no such file, or it can't be read.
        BrokenModelFile: it isn't GGUF, or its structure is damaged.
        UnsupportedModel: it is GGUF of a version, byte order or tensor type that is not supported.
    """
    path = Path(path)
    with open_model(path) as file:
        return _Parser(path, file).header()


class _Parser:
    """Walks a header once, from front to back, through a window of the file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.window = b""
        self.base = 0  # of the window in the file
        self.at = 0  # in the window
        self.eager = 0  # bytes of strings built so far

    def header(self) -> GGUFHeader:
        version = self._version()
        n_tensors = self._count("tensors", MAX_TENSORS, min_bytes=8 + 4 + 8 + 4 + 8)
        n_keys = self._count("keys", MAX_KEYS, min_bytes=8 + 1 + 4 + 1)
        fields = self._fields(n_keys)
        alignment = self._alignment(fields)
        tensors = self._tensors(n_tensors)
        end = self._tell()
        return GGUFHeader(
            path=self.path,
            version=version,
            fields=fields,
            tensors=tensors,
            alignment=alignment,
            data_offset=-(-end // alignment) * alignment,
            n_header_bytes=end,
            file_size=self.size,
            metadata={key: entry.value for key, entry in fields.items()},
        )

    def _version(self) -> int:
        if not self.size:
            raise BrokenModelFile(f"{self.path} is empty: {AGAIN}")
        magic = self._bytes(min(4, self.size), "its first four bytes")
        if magic != MAGIC:
            if magic == MAGIC[: len(magic)]:
                raise cut_off(self.path, "it ends within its first four bytes")
            self.at = 0
            raise BrokenModelFile(f"{self.path} {foreign(self._bytes(min(HEAD_BYTES, self.size), 'it'))}")
        version: int = self._unpack(U32, "its version")
        if version in VERSIONS:
            return version
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, *VERSIONS):
            raise UnsupportedModel(
                f"{self.path} is made for other computers (big-endian): get the usual, little-endian one"
            )
        if version == 1:
            raise UnsupportedModel(
                f"{self.path} is too old a GGUF file (version 1): get a newer one, or convert the model again"
            )
        if VERSIONS[-1] < version < 16:
            raise UnsupportedModel(
                f"{self.path} is a newer GGUF file (version {version}) than is known here: "
                "get one of version 3, or a newer edgechat"
            )
        raise damaged(self.path, f"it has version {version}, which GGUF never had", 4)

    def _count(self, what: str, limit: int, min_bytes: int) -> int:
        where = self._tell()
        count: int = self._unpack(U64, f"how many {what} it has")
        if count > limit:
            raise damaged(self.path, f"it has {count} {what}, of {limit} at most", where)
        if count * min_bytes > self.size - self._tell():
            raise cut_off(self.path, f"it has {count} {what}, more than the file has room for", where)
        return count

    def _fields(self, count: int) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for _ in range(count):
            where = self._tell()
            key = self._name(MAX_KEY_BYTES, "a key")
            if key in fields:
                raise damaged(self.path, f"it has the key {key!r} twice", where)
            kind = self._value_type(key)
            value = self._array(key) if kind is ValueType.ARRAY else self._scalar(kind, key)
            fields[key] = Field(value, kind, where)
        return fields

    def _value_type(self, key: str) -> ValueType:
        where = self._tell()
        number: int = self._unpack(U32, f"the type of {key}")
        try:
            return ValueType(number)
        except ValueError:
            raise damaged(self.path, f"{key} is of the unknown type {number}", where) from None

    def _scalar(self, kind: ValueType, key: str) -> Scalar:
        if kind is not ValueType.STRING:
            value: Scalar = self._unpack(SCALARS[kind], key)
            return value
        where = self._tell()
        length: int = self._unpack(U64, key)
        self.eager += length
        if length > MAX_STRING_BYTES or self.eager > MAX_EAGER_BYTES:
            raise damaged(self.path, f"{key} is a text of {length} bytes, over the limit", where)
        return self._bytes(length, key).decode("utf-8", "replace")

    def _array(self, key: str) -> LazyArray:
        kind = self._value_type(key)
        where = self._tell()
        count: int = self._unpack(U64, key)
        if kind is ValueType.ARRAY:
            raise damaged(self.path, f"{key} is a list of lists", where)
        if count > MAX_ARRAY:
            raise damaged(self.path, f"{key} is a list of {count}, over the limit", where)
        start = self._tell()
        if kind is ValueType.STRING:
            self._skip_strings(count, key)
        else:
            self._skip(count * SCALARS[kind].size, key)
        return LazyArray(self.path, kind, count, start, self._tell() - start)

    def _alignment(self, fields: Mapping[str, Field]) -> int:
        entry = fields.get("general.alignment")
        if entry is None:
            return DEFAULT_ALIGNMENT
        value = entry.value
        # Over 1 MiB no file needs, and the padding would be mistaken for truncation.
        if entry.type is not ValueType.UINT32 or not isinstance(value, int) or not _power_of_2(value, 2**20):
            raise damaged(
                self.path,
                f"general.alignment is {value!r}: it must be a power of two, as {ValueType.UINT32.shown}",
                entry.offset,
            )
        return value

    def _tensors(self, count: int) -> tuple[TensorInfo, ...]:
        tensors: list[TensorInfo] = []
        names: set[str] = set()
        for _ in range(count):
            where = self._tell()
            name = self._name(MAX_NAME_BYTES, "a tensor's name")
            if name in names:
                raise damaged(self.path, f"it has the tensor {name!r} twice", where)
            names.add(name)
            shape = self._shape(name)
            kind = self._tensor_type(name)
            block = BLOCKS[kind]
            if shape[0] % block.elements:
                raise damaged(
                    self.path,
                    f"{name} has rows of {shape[0]}, but {kind.name} comes in blocks of {block.elements}",
                    where,
                )
            offset: int = self._unpack(U64, name)
            info = TensorInfo(name, shape, kind, offset, 0, where)
            n_bytes = info.n_elements // block.elements * block.n_bytes
            tensors.append(TensorInfo(name, shape, kind, offset, n_bytes, where))
        return tuple(tensors)

    def _shape(self, name: str) -> tuple[int, ...]:
        where = self._tell()
        n_dims: int = self._unpack(U32, name)
        if not 1 <= n_dims <= MAX_DIMS:
            raise damaged(self.path, f"{name} has {n_dims} dimensions: 1 to {MAX_DIMS} are possible", where)
        shape: tuple[int, ...] = struct.unpack(f"<{n_dims}Q", self._bytes(8 * n_dims, name))
        product = 1
        for n in shape:
            product *= n
        if not 0 < product < 2**63:
            raise damaged(self.path, f"{name} has the impossible shape {list(shape)}", where)
        return shape

    def _tensor_type(self, name: str) -> GGMLType:
        where = self._tell()
        number: int = self._unpack(U32, name)
        if number in REMOVED_TYPES:
            raise UnsupportedModel(
                f"{self.path} is of a type that llama.cpp gave up: get it in another, or quantize it again "
                f"({name} is in {REMOVED_TYPES[number]})"
            )
        try:
            return GGMLType(number)
        except ValueError:
            raise damaged(self.path, f"{name} is of the unknown type {number}", where) from None

    # --- the window

    def _tell(self) -> int:
        return self.base + self.at

    def _need(self, count: int, what: str) -> int:
        """Have `count` bytes in the window; where they begin in it."""
        if self.at + count > len(self.window):
            where = self._tell()
            if where + count > self.size:
                raise cut_off(self.path, f"it ends within {what}", where)
            if where + count > MAX_HEADER_BYTES:
                raise damaged(self.path, f"its header has over {MAX_HEADER_BYTES} bytes", where)
            self.file.seek(where)
            self.window = self.file.read(min(max(count, WINDOW), self.size - where))
            self.base, self.at = where, 0
            if len(self.window) < count:
                raise cut_off(self.path, f"it ends within {what}", where)
        return self.at

    def _bytes(self, count: int, what: str) -> bytes:
        at = self._need(count, what)
        self.at = at + count
        return self.window[at : self.at]

    def _unpack(self, kind: struct.Struct, what: str) -> int:
        at = self._need(kind.size, what)
        self.at = at + kind.size
        value: int = kind.unpack_from(self.window, at)[0]
        return value

    def _skip(self, count: int, what: str) -> None:
        where = self._tell()
        if where + count > self.size:
            raise cut_off(self.path, f"it ends within {what}", where)
        self.at += count

    def _skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, a window at a time."""
        if count * U64.size > self.size - self._tell():
            raise cut_off(
                self.path, f"{what} is a list of {count} texts, more than the file has room for", self._tell()
            )
        unpack = U64.unpack_from
        while count:
            at = self._need(U64.size, what)
            window, last = self.window, len(self.window) - U64.size
            done = 0
            for done in range(1, count + 1):  # noqa: B007 - needed after the loop
                at += U64.size + unpack(window, at)[0]
                if at > last:
                    break
            count -= done
            self.at = at
            if self._tell() > self.size:
                raise cut_off(self.path, f"it ends within {what}", self.size)

    def _name(self, limit: int, what: str) -> str:
        where = self._tell()
        length: int = self._unpack(U64, what)
        if not 1 <= length <= limit:
            raise damaged(self.path, f"{what} has {length} bytes: 1 to {limit} are possible", where)
        raw = self._bytes(length, what)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise damaged(self.path, f"{what} is no text", where) from None
        if not name.isprintable():
            raise damaged(self.path, f"{what} has control characters in it", where)
        return name


def _power_of_2(number: int, limit: int) -> bool:
    return 0 < number <= limit and number & (number - 1) == 0
