"""An importance matrix: how large the inputs of each matrix of a model are, column by column.

llama.cpp weights the rounding error of each weight by the mean square of what it is multiplied with. The
file is a GGUF file without a model: sums of squares `<tensor>.in_sum2`, and over how many inputs
`<tensor>.counts`, one of each per expert. The older format, `imatrix.dat`, is read too.

Format: llama.cpp's tools/imatrix and common/imatrix-loader.
"""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from models.errors import BrokenModelFile, UnsupportedModel
from models.ggml_types import GGMLType
from models.gguf import GGUFHeader, LazyArray, TensorInfo, read_header
from models.gguf_header import open_model
from quantize.errors import BadRequest
from quantize.formats.gguf import OutputTensor, encode, header_bytes, write_tensor
from quantize.partial import finish, partial

SUMS = ".in_sum2"
COUNTS = ".counts"
DATASETS = "imatrix.datasets"
CHUNK_COUNT = "imatrix.chunk_count"
CHUNK_SIZE = "imatrix.chunk_size"

AGAIN = "make it again"

MAX_FILE_BYTES = 2**32
MAX_ENTRIES = 2**16
MAX_NAME_BYTES = 1024

_LAYER = re.compile(r"^blk\.(\d+)\.")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What goes into one tensor: a matrix, or a stack of experts' matrices."""

    sums: Floats
    """Of squares, [experts, columns]; one expert for a plain matrix."""
    counts: Floats
    """Inputs that were summed up, [experts]: whole numbers."""

    def __post_init__(self) -> None:
        if self.sums.ndim != 2 or self.counts.shape != self.sums.shape[:1]:
            raise ValueError(f"sums {self.sums.shape} and counts {self.counts.shape} don't belong together")

    @property
    def mean(self) -> Floats:
        """Mean squares [experts, columns]; all 1 for an expert that saw nothing, as in llama.cpp."""
        counts = np.maximum(self.counts, 1)[:, None]
        mean = np.where(self.counts[:, None] > 0, self.sums / counts, np.float32(1))
        return mean.astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceMatrix:
    """Of one model."""

    entries: Mapping[str, Entry]
    """By the tensors' names in a GGUF file, such as "blk.0.attn_q.weight"."""
    datasets: tuple[str, ...] = ()
    """Names of the texts that it was made of."""
    chunk_count: int = 0
    """Windows of text."""
    chunk_size: int = 0
    """Tokens of each; 0: unknown."""
    path: Path | None = field(default=None, compare=False)
    """Where it was read from."""

    def weights(self, name: str) -> Floats | None:
        """Mean squares of a tensor's inputs: float32 [columns], of a stack of experts [experts, columns].

        Args:
            name: the tensor's in a GGUF file.

        Returns:
            None: nothing is known of that tensor.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        mean = entry.mean
        return mean[0] if len(mean) == 1 else mean

    @staticmethod
    def read(path: Path) -> "ImportanceMatrix":
        """Read one that llama.cpp or edgechat made, in the GGUF format or the older one.

        Raises:
            FileNotFoundError: there is no such file.
            BrokenModelFile: it is truncated or damaged, or holds NaN.
            UnsupportedModel: it is a GGUF file of something else.
        """
        with open_model(path) as file:
            is_gguf = file.read(4) == b"GGUF"
        return _read_gguf(path) if is_gguf else _read_old(path)

    def write(self, path: Path) -> None:
        """Write it in the GGUF format, whole or not at all; a file that is there is replaced."""
        path = path.absolute()
        with partial(path) as unfinished:
            self.store(unfinished)
            finish(unfinished, path)

    def store(self, path: Path) -> None:
        """Write it in place: for files in the making."""
        tensors: list[tuple[OutputTensor, Floats]] = []
        for name, entry in sorted(self.entries.items()):
            sums = OutputTensor(name + SUMS, entry.sums.shape, GGMLType.F32)
            counts = OutputTensor(name + COUNTS, (len(entry.counts), 1), GGMLType.F32)
            tensors += [(sums, entry.sums), (counts, entry.counts)]
        metadata = {
            "general.type": encode("imatrix"),
            DATASETS: encode(list(self.datasets or ("unknown",))),
            CHUNK_COUNT: encode(self.chunk_count),
            CHUNK_SIZE: encode(self.chunk_size),
        }
        with path.open("wb") as file:
            file.write(header_bytes(metadata, [tensor for tensor, _ in tensors]))
            for tensor, values in tensors:
                write_tensor(file, tensor, [np.ascontiguousarray(values, "<f4").tobytes()])

    def fitted(self, shapes: Mapping[str, tuple[int, ...]]) -> "ImportanceMatrix":
        """This one, when it is of the model that is quantized. Stacks of experts that an older file has in
        one row are taken apart.

        Args:
            shapes: of the model's tensors by name, rows first: [rows, columns] or [experts, rows, columns].

        Raises:
            BadRequest: it is of another model; with the first tensor that differs.
        """
        where = "the importance matrix" if self.path is None else str(self.path)
        entries: dict[str, Entry] = {}
        for name, entry in sorted(self.entries.items(), key=lambda item: _order(item[0])):
            shape = shapes.get(name)
            if shape is None:
                raise BadRequest(f"{where} is of another model: it has {name}, which this model has not")
            experts = math.prod(shape[:-2]) if len(shape) > 2 else 1
            if entry.sums.size != experts * shape[-1] or len(entry.counts) not in {1, experts}:
                raise BadRequest(
                    f"{where} is of another model: it has {entry.sums.size} numbers for {name}, "
                    f"which has {_product(experts, shape[-1])} here"
                )
            entries[name] = Entry(
                entry.sums.reshape(experts, shape[-1]), np.resize(entry.counts, experts).astype(np.float32)
            )
        known = {layer[1] for name in entries if (layer := _LAYER.match(name))}
        for name in sorted(shapes, key=_order):
            layer = _LAYER.match(name)
            if layer is not None and layer[1] not in known:
                raise BadRequest(f"{where} is of another model: it has nothing of {name}")
        return replace(self, entries=entries)


def _order(name: str) -> tuple[int, str]:
    """Layers in the order of their numbers."""
    layer = _LAYER.match(name)
    return (int(layer[1]) if layer else -1, name)


def _product(experts: int, columns: int) -> str:
    return str(columns) if experts == 1 else f"{experts} x {columns}"


# --- the GGUF format


def _read_gguf(path: Path) -> ImportanceMatrix:
    header = read_header(path)
    kind = header.metadata.get("general.type")
    if kind != "imatrix":
        what = f"a GGUF file of type {kind!r}" if isinstance(kind, str) else "a GGUF file of something else"
        raise UnsupportedModel(f"{path} is {what}, not an importance matrix")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    names = sorted({_plain(name) for name in tensors if name.endswith((SUMS, COUNTS))})
    if not names:
        raise BrokenModelFile(f"{path} is an importance matrix without any tensor in it: {AGAIN}")
    entries = {}
    with open_model(path) as file:
        for name in names:
            pair = [tensors.get(name + suffix) for suffix in (SUMS, COUNTS)]
            if pair[0] is None or pair[1] is None:
                lacking = SUMS if pair[0] is None else COUNTS
                raise BrokenModelFile(f"{path} lacks {name}{lacking}: {AGAIN}")
            sums, counts = (_floats(file, header, tensor) for tensor in pair if tensor is not None)
            entries[name] = _entry(path, name, sums, np.rint(counts))
    return ImportanceMatrix(
        entries, _datasets(header), _number(header, CHUNK_COUNT), _number(header, CHUNK_SIZE), path
    )


def _plain(name: str) -> str:
    return name.removesuffix(SUMS).removesuffix(COUNTS)


def _floats(file: BinaryIO, header: GGUFHeader, tensor: TensorInfo) -> Floats:
    """All numbers of a tensor, in one row."""
    if tensor.type is not GGMLType.F32:
        raise BrokenModelFile(f"{header.path}: {tensor.name} is {tensor.type.name}, not F32: {AGAIN}")
    start = header.data_offset + tensor.offset
    if start + tensor.n_bytes > header.file_size:
        raise BrokenModelFile(
            f"{header.path} is cut off: {tensor.name} ends at byte {start + tensor.n_bytes}, the file at "
            f"{header.file_size}: {AGAIN}"
        )
    file.seek(start)
    return np.frombuffer(file.read(tensor.n_bytes), "<f4").astype(np.float32)


def _entry(path: Path, name: str, sums: Floats, counts: Floats) -> Entry:
    """Checked: whole experts, finite, not negative."""
    if len(sums) % len(counts):
        raise BrokenModelFile(
            f"{path}: {name} has {len(sums)} sums for {len(counts)} experts: not a whole number each: {AGAIN}"
        )
    for what, values in (("sums", sums), ("counts", counts)):
        if not np.isfinite(values).all():
            raise BrokenModelFile(f"{path}: the {what} of {name} hold NaN or infinity: {AGAIN}")
        if (values < 0).any():
            raise BrokenModelFile(f"{path}: the {what} of {name} hold a negative number: {AGAIN}")
    return Entry(sums.reshape(len(counts), -1), counts.astype(np.float32))


def _number(header: GGUFHeader, key: str) -> int:
    value = header.metadata.get(key)
    return value if isinstance(value, int) else 0


def _datasets(header: GGUFHeader) -> tuple[str, ...]:
    value = header.metadata.get(DATASETS)
    return tuple(str(one) for one in value.read()) if isinstance(value, LazyArray) else ()


# --- the older format


def _read_old(path: Path) -> ImportanceMatrix:
    """Count of entries, then of each its name, calls, size and mean squares times calls; then all calls and
    the name of the text, which may be absent. All numbers are int32 and float32, little-endian."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BrokenModelFile(f"{path} is too long for an importance matrix")
    cursor = _Cursor(path, path.read_bytes())
    count = cursor.number("its count of entries")
    if not 0 < count <= MAX_ENTRIES:
        raise BrokenModelFile(f"{path} is no importance matrix: neither GGUF nor llama.cpp's older format")
    entries = {}
    for _ in range(count):
        name = cursor.text("a tensor's name")
        calls = cursor.number(f"{name}'s calls")
        sums = cursor.floats(cursor.number(f"{name}'s size"), name)
        entries[name] = _entry(path, name, sums, np.array([max(calls, 1)], np.float32))
    chunks, datasets = 0, []
    if not cursor.at_end:
        chunks = max(0, cursor.number("its chunks"))
        if not cursor.at_end:
            datasets.append(cursor.text("the name of its text"))
    return ImportanceMatrix(entries, tuple(datasets), chunks, 0, path)


class _Cursor:
    """Reads one number after the other, and never beyond the end."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self.path = path
        self.raw = raw
        self.at = 0

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.raw)

    def _take(self, n_bytes: int, what: str) -> bytes:
        if n_bytes < 0 or self.at + n_bytes > len(self.raw):
            raise BrokenModelFile(
                f"{self.path} is cut off or no importance matrix: at byte {self.at}, {what}: {AGAIN}"
            )
        self.at += n_bytes
        return self.raw[self.at - n_bytes : self.at]

    def number(self, what: str) -> int:
        value: int = struct.unpack("<i", self._take(4, what))[0]
        return value

    def text(self, what: str) -> str:
        length = self.number(what)
        if length > MAX_NAME_BYTES:
            raise BrokenModelFile(f"{self.path}: {what} has {length} bytes: it is no importance matrix")
        return self._take(length, what).decode("utf-8", "replace")

    def floats(self, count: int, what: str) -> Floats:
        if count < 1:
            raise BrokenModelFile(f"{self.path}: {what} has {count} numbers: {AGAIN}")
        return np.frombuffer(self._take(4 * count, what), "<f4").astype(np.float32)
