"""The weights of a model on disk, tensor by tensor: safetensors (a file, or shards) and GGUF (dequantized).

Quantized safetensors are seen as if they were dense: models/packed.py.

What is not asked for is not read. Reading goes through `readinto`, not through mmap: a page that was mapped
counts as ours until the file is unmapped, and a file that shrinks under a mapping kills the process.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from models import safetensors
from models.closing import Closing
from models.errors import BrokenModelFile, UnsupportedModel, cut_off, damaged
from models.ggml_types import BLOCKS, GGMLType
from models.gguf import GGUFHeader, read_header
from models.json_file import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_NO_MODEL = re.compile(r"^adapter_model\.|-of-0*([2-9]|1\d)\d*\.safetensors$")
"""Weights that are none by themselves: what is added to others, and one shard of several."""

Floats = npt.NDArray[np.float32]
Stored = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16] | npt.NDArray[np.uint8]

_FUSED = re.compile(r"\.mlp\.experts\.(gate_up_proj|down_proj)$")

PLAIN: dict[GGMLType, type[np.generic]] = {
    GGMLType.F32: np.float32,
    GGMLType.F16: np.float16,
    GGMLType.BF16: np.uint16,
}
"""Types that are stored one number after another; bfloat16 is held in its 16 bits."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor, and where it is stored."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as numpy and torch have it; [] for a single number."""
    type: GGMLType
    """Of safetensors' other types only the size is right: see `dtype`."""
    dtype: str
    """As the file calls the type."""
    file: Path
    offset: int
    n_bytes: int

    @property
    def columns(self) -> int:
        """Numbers in a row: the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def n_rows(self) -> int:
        """Rows of `columns` numbers; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def n_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        block = BLOCKS[self.type]
        return self.columns // block.elements * block.n_bytes


class Checkpoint(Protocol):
    """Named tensors that are read when they are asked for."""

    path: Path
    tensors: Mapping[str, StoredTensor]

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        """Rows [start, stop) of a tensor, dequantized: float32 [rows, columns], the caller's own.

        Raises:
            BrokenModelFile: the file ends before the tensor does.
        """
        ...

    def stored_rows(self, name: str, start: int = 0, stop: int | None = None) -> Stored:
        """The same rows as they are stored: float32, float16, uint16 (bfloat16) [rows, columns], or
        uint8 [rows, row_bytes] of a quantized tensor."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class _Files(Closing):
    """Open files, and rows out of them."""

    def __init__(self, path: Path, tensors: Mapping[str, StoredTensor]) -> None:
        self.path = path
        self.tensors = tensors
        self._open: dict[Path, BinaryIO] = {}

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def stored_rows(self, name: str, start: int = 0, stop: int | None = None) -> Stored:
        """Rows [start, stop) as they are stored."""
        tensor = self.tensors[name]
        stop = tensor.n_rows if stop is None else stop
        if not 0 <= start <= stop <= tensor.n_rows:
            raise ValueError(f"rows {start} to {stop} of {name}, which has {tensor.n_rows}")
        plain = PLAIN.get(tensor.type)
        rows: Stored = (
            np.empty((stop - start, tensor.columns), plain)
            if plain is not None
            else np.empty((stop - start, tensor.row_bytes), np.uint8)
        )
        file = self._open.get(tensor.file)
        if file is None:
            file = self._open[tensor.file] = tensor.file.open("rb", buffering=0)
        file.seek(tensor.offset + start * tensor.row_bytes)
        view = memoryview(rows.reshape(-1).view(np.uint8).data)
        at = 0
        while at < len(view):
            got = file.readinto(view[at:])  # type: ignore[attr-defined]
            if not got:
                raise cut_off(tensor.file, f"it ends within {name}")
            at += got
        return rows

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        """Rows [start, stop), dequantized."""
        return to_float32(self.stored_rows(name, start, stop), self.tensors[name].type)


def to_float32(rows: Stored, kind: GGMLType) -> Floats:
    """Dequantize rows of a stored tensor."""
    if kind is GGMLType.F32:
        return rows.view(np.float32)
    if kind is GGMLType.F16:
        return rows.astype(np.float32)
    if kind is GGMLType.BF16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        return np.asarray(dequantize(rows, GGMLQuantizationType(int(kind))), np.float32)
    except (NotImplementedError, ValueError):
        raise UnsupportedModel(f"tensors of type {kind.name} can't be dequantized here") from None


class SafetensorsCheckpoint(_Files):
    """A folder as `save_pretrained` writes it."""

    def __init__(self, folder: Path) -> None:
        """Read the headers of all shards.

        Raises:
            FileNotFoundError: no weights, or a shard is missing.
            BrokenModelFile: a file is damaged, or the index doesn't fit the shards.
            UnsupportedModel: weights in a form that is not read here, such as pickle.
        """
        super().__init__(folder, split_experts(_safetensors(folder)))


def _safetensors(folder: Path) -> dict[str, StoredTensor]:
    index = _index(folder)
    if index is None:
        return _shard(_single(folder))
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise damaged(index, "it has no weight_map")
    for file in names.values():
        # A name with a folder in it could lead out of the checkpoint.
        if not isinstance(file, str) or Path(file).name != file or "\\" in file:
            raise BrokenModelFile(f"{index} names {file!r}, which is not a file in this folder")
    files = sorted(set(names.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: {len(missing)} of {len(files)} shards are missing: {_some(missing)}: download them"
        )
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _shard(folder / file).items():
            if names.get(name) == file:
                tensors[name] = tensor
    lost = [name for name in names if name not in tensors]
    if lost:
        raise BrokenModelFile(
            f"{index} promises {_some(lost)}, which its shards don't hold: download them again"
        )
    return tensors


def split_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors that hold a matrix of every expert of a layer, seen as those matrices.

    transformers 5 computes with, and at times saves, `mlp.experts.gate_up_proj` [E, 2I, D], each expert's
    gate above its up, and `mlp.experts.down_proj` [E, D, I], where checkpoints have two or one matrices for
    each expert. All are runs of whole rows, so that each matrix is a piece of the file.
    """
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.search(name)
        if match is None or len(tensor.shape) != 3:
            found[name] = tensor
            continue
        experts, rows, columns = tensor.shape
        kinds = ("gate_proj", "up_proj") if match[1] == "gate_up_proj" else ("down_proj",)
        if rows % len(kinds):
            raise damaged(tensor.file, f"{name} has {rows} rows, an odd number for gate and up")
        part = tensor.n_bytes // (experts * len(kinds))
        for number in range(experts * len(kinds)):
            expert, kind = divmod(number, len(kinds))
            one = f"{name[: match.start(1)]}{expert}.{kinds[kind]}.weight"
            found[one] = replace(
                tensor,
                name=one,
                shape=(rows // len(kinds), columns),
                offset=tensor.offset + number * part,
                n_bytes=part,
            )
    return found


def _index(folder: Path) -> Path | None:
    """What names a checkpoint's shards; None: it has none. Old AutoGPTQ has names of its own."""
    return _usual_or_only(folder, INDEX, ".safetensors.index.json")


def _usual_or_only(folder: Path, usual: str, ending: str) -> Path | None:
    """The file of the usual name; else the only one that ends so."""
    if (folder / usual).is_file():
        return folder / usual
    found = [path for path in folder.glob(f"*{ending}") if path.is_file() and not _NO_MODEL.search(path.name)]
    return found[0] if len(found) == 1 else None


def _single(folder: Path) -> Path:
    path = _usual_or_only(folder, SINGLE, ".safetensors")
    if path is not None:
        return path
    pickled = [
        name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (folder / name).is_file()
    ]
    if pickled:
        raise UnsupportedModel(
            f"{folder} has its weights in {pickled[0]}, a form that can run any code when it is read, so it "
            "isn't: get the model in safetensors"
        )
    raise FileNotFoundError(f"{folder} has no weights (neither {SINGLE} nor {INDEX}): download the rest")


def _shard(path: Path) -> dict[str, StoredTensor]:
    return {name: _stored(path, entry) for name, entry in safetensors.read_header(path).items()}


# Integers and eight-bit floats stand here by their size only.
_TYPES = {
    "F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16, "F64": GGMLType.F64, "I64": GGMLType.I64,
    "U64": GGMLType.I64, "I32": GGMLType.I32, "U32": GGMLType.I32, "I16": GGMLType.I16, "U16": GGMLType.I16,
}  # fmt: skip


def _stored(path: Path, entry: safetensors.Entry) -> StoredTensor:
    kind = _TYPES.get(entry.dtype, GGMLType.I8)
    return StoredTensor(entry.name, entry.shape, kind, entry.dtype, path, entry.offset, entry.n_bytes)


class GGUFCheckpoint(_Files):
    """A GGUF file. Its tensors keep llama.cpp's names and its order of rows."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            FileNotFoundError: no such file.
            BrokenModelFile: not a sound GGUF file.
            UnsupportedModel: one part of a model that was split.
        """
        self.header: GGUFHeader = read_header(path)
        n_parts = self.header.metadata.get("split.count", 1)
        if isinstance(n_parts, int) and n_parts > 1:
            raise UnsupportedModel(
                f"{path} is one of {n_parts} parts: join them first (llama-gguf-split --merge)"
            )
        tensors = {
            info.name: StoredTensor(
                info.name,
                info.shape[::-1],
                info.type,
                info.type.name,
                path,
                self.header.data_offset + info.offset,
                info.n_bytes,
            )
            for info in self.header.tensors
        }
        for tensor in tensors.values():
            if tensor.offset + tensor.n_bytes > self.header.file_size:
                raise cut_off(path, f"it ends within {tensor.name}")
        super().__init__(path, tensors)


def open_checkpoint(path: str | os.PathLike[str]) -> SafetensorsCheckpoint | GGUFCheckpoint:
    """Open a folder in safetensors, or a GGUF file.

    Raises:
        FileNotFoundError: nothing there, or it is incomplete.
        BrokenModelFile: damaged.
        UnsupportedModel: of a form that is not read here.
    """
    path = Path(path)
    if path.is_dir():
        from models.packed import open_folder

        return open_folder(path)
    if path.suffix in (".safetensors", ".json") and path.is_file():
        raise UnsupportedModel(f"{path} is one file of a checkpoint: give the folder that it is in")
    if not path.is_file():
        raise FileNotFoundError(f"nothing at {path}: check the name")
    return GGUFCheckpoint(path)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
