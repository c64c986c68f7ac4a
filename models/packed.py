"""Quantized checkpoints, seen as dense ones: a matrix has its plain name, and its rows are dequantized when
they are asked for.

Read are GPTQ (AutoGPTQ, GPTQModel), AWQ (AutoAWQ's GEMM), compressed-tensors (integers of 2, 3, 4 and 8 bits,
packed or plain; FP8), and FP8 with scales by block, by row or by matrix.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import float8, packed_layouts
from models.checkpoint import Floats, SafetensorsCheckpoint, Stored, StoredTensor, to_float32
from models.errors import BrokenModelFile, damaged
from models.ggml_types import GGMLType
from models.packed_layouts import LayoutError, Matrix
from models.packed_settings import check_method, format_of, quantization
from models.packing import BITS

UNUSED = re.compile(
    r"\.(input_scale|output_scale|activation_scale|input_zero_point|output_zero_point|weight_global_scale"
    r"|input_global_scale|[kv]_scale|act_scale)$"
)
"""Scales of activations: nothing of the weights."""


class Layout(StrEnum):
    """How a matrix is stored."""

    GPTQ = "gptq"
    AWQ = "awq"
    PACKED = "pack-quantized"
    BYTES = "int-quantized"
    FLOAT8 = "fp8"


SUFFIXES: dict[Layout, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Layout.GPTQ: (("qweight", "qzeros", "scales"), ("g_idx",)),
    Layout.AWQ: (("qweight", "qzeros", "scales"), ()),
    Layout.PACKED: (
        ("weight_packed", "weight_scale", "weight_shape"),
        ("weight_zero_point", "weight_g_idx"),
    ),
    Layout.BYTES: (("weight", "weight_scale"), ("weight_zero_point",)),
    Layout.FLOAT8: (("weight",), ("weight_scale", "weight_scale_inv")),
}
"""Of a module's tensors: those that are there, and those that may be."""


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A matrix, and the tensors that make it up."""

    layout: Layout
    module: str
    parts: Mapping[str, StoredTensor]
    """By the last part of their names."""
    shape: tuple[int, int]

    def seen(self) -> StoredTensor:
        """The matrix as a tensor of the checkpoint; its size is that of its parts."""
        first = next(iter(self.parts.values()))
        n_bytes = sum(part.n_bytes for part in self.parts.values())
        name = f"{self.module}.weight"
        return StoredTensor(name, self.shape, GGMLType.F32, "F32", first.file, first.offset, n_bytes)


class PackedCheckpoint(SafetensorsCheckpoint):
    """A folder whose matrices are quantized."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Read the headers of all shards.

        Args:
            folder: with the weights.
            settings: `quantization_config`.

        Raises:
            FileNotFoundError: no weights, or a shard is missing.
            BrokenModelFile: a file is damaged, or a matrix lacks a part.
            UnsupportedModel: a quantization that is not read here.
        """
        super().__init__(folder)
        self._raw = SafetensorsCheckpoint(folder)
        self._settings = settings
        self._last: tuple[str, Matrix] | None = None
        self.packed: dict[str, PackedTensor] = {}
        """The quantized matrices, by their plain names."""
        check_method(folder, settings)
        self.tensors = self._seen()

    def _seen(self) -> dict[str, StoredTensor]:
        hidden: set[str] = set()
        for name, stored in self._raw.tensors.items():
            found = self._find(name, stored)
            if found is not None:
                self.packed[f"{found.module}.weight"] = found
                hidden |= {part.name for part in found.parts.values()}
        plain = {
            name: stored
            for name, stored in self._raw.tensors.items()
            if name not in hidden
            and not (UNUSED.search(name) and f"{name.rpartition('.')[0]}.weight" in self.packed)
        }
        return plain | {name: packed.seen() for name, packed in self.packed.items()}

    def _find(self, name: str, stored: StoredTensor) -> PackedTensor | None:
        """The quantized matrix whose main tensor this is, if it is one."""
        module, _, suffix = name.rpartition(".")
        layout = _layout(suffix, stored.dtype, is_awq=self._settings.get("quant_method") == "awq")
        if layout is None:
            return None
        needed, possible = SUFFIXES[layout]
        parts: dict[str, StoredTensor] = {}
        for part in (*needed, *possible):
            found = self._raw.tensors.get(f"{module}.{part}")
            if found is not None:
                parts[part] = found
            elif part in needed:
                raise damaged(self.path, f"{module} has {suffix} but no {part}")
        try:
            rows, columns = self._shape(layout, parts)
        except (IndexError, ValueError):
            raise damaged(self.path, f"{module} has tensors of impossible shapes") from None
        return PackedTensor(layout, module, parts, (rows, columns))

    def _shape(self, layout: Layout, parts: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """[N, K], from the headers where they say it."""
        if layout is Layout.GPTQ:
            if "g_idx" in parts:
                return parts["scales"].shape[1], parts["g_idx"].n_elements
            return parts["scales"].shape[1], parts["qweight"].shape[0] * 32 // self._bits()
        if layout is Layout.AWQ:
            return parts["scales"].shape[1], parts["qweight"].shape[0]
        if layout is Layout.PACKED:
            return tuple(int(size) for size in self._array(parts["weight_shape"]).reshape(-1))
        return parts["weight"].shape

    def _bits(self) -> int:
        """Of all matrices, as the configuration has it."""
        bits = self._settings.get("bits", self._settings.get("w_bit", 4))
        if bits not in BITS:
            raise ValueError
        return int(bits)

    def close(self) -> None:
        """Close the files."""
        super().close()
        self._raw.close()
        self._last = None

    def matrix(self, name: str) -> Matrix | None:
        """A quantized matrix in its integers; None: it is dense, or in eight-bit floats.

        Raises:
            BrokenModelFile: its parts don't fit each other.
        """
        packed = self.packed.get(name)
        if packed is None or packed.layout is Layout.FLOAT8:
            return None
        if self._last is None or self._last[0] != name:
            self._last = name, self._decoded(name, packed)
        return self._last[1]

    def _decoded(self, name: str, packed: PackedTensor) -> Matrix:
        arrays = {suffix: self._array(part) for suffix, part in packed.parts.items()}
        for suffix in ("scales", "weight_scale"):
            if suffix in arrays and not np.isfinite(arrays[suffix]).all():
                raise damaged(self.path, f"{name} has scales of NaN or infinity")
        try:
            if packed.layout is Layout.GPTQ:
                v1 = format_of(self._settings, "gptq") != "gptq_v2"
                size = int(self._settings.get("group_size", -1))
                if "g_idx" not in arrays:  # left out by those that never shuffle
                    k = packed.shape[1]
                    arrays["g_idx"] = (np.arange(k) // (k if size == -1 else size)).astype(np.int32)
                return packed_layouts.gptq(arrays, zeros_less_one=v1, group_size=size)
            if packed.layout is Layout.AWQ:
                return packed_layouts.awq(arrays)
            if packed.layout is Layout.PACKED:
                return packed_layouts.pack_quantized(arrays)
            return packed_layouts.int_quantized(arrays)
        except (LayoutError, IndexError, ValueError, ZeroDivisionError) as error:
            raise damaged(self.path, f"{name}: {error}") from None

    def _array(self, part: StoredTensor) -> npt.NDArray[Any]:
        rows = self._raw.stored_rows(part.name)
        array: npt.NDArray[Any] = rows
        if part.dtype == "BF16":
            array = to_float32(rows, GGMLType.BF16)
        elif part.dtype in {"I32", "I64"}:
            array = rows.view(np.int32 if part.dtype == "I32" else np.int64)
        return array.reshape(part.shape)

    def stored_rows(self, name: str, start: int = 0, stop: int | None = None) -> Stored:
        """Rows [start, stop) as they are stored; of a quantized matrix float32."""
        return self.rows(name, start, stop) if name in self.packed else super().stored_rows(name, start, stop)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        """Rows [start, stop), dequantized."""
        packed = self.packed.get(name)
        if packed is None:
            return super().rows(name, start, stop)
        n = packed.shape[0]
        stop = n if stop is None else stop
        if not 0 <= start <= stop <= n:
            raise ValueError(f"rows {start} to {stop} of {name}, which has {n}")
        matrix = self.matrix(name)
        return self._float8_rows(packed, start, stop) if matrix is None else matrix.rows(start, stop).dense()

    def _float8_rows(self, packed: PackedTensor, start: int, stop: int) -> Floats:
        weight = packed.parts["weight"]
        raw = self._raw.stored_rows(weight.name, start, stop)
        values = float8.to_float32(raw.view(np.uint8), weight.dtype)
        for suffix in ("weight_scale", "weight_scale_inv"):
            if suffix in packed.parts:
                try:
                    scales = packed_layouts.block_scales(self._array(packed.parts[suffix]), packed.shape)
                except LayoutError as error:
                    raise BrokenModelFile(f"{weight.file}: {weight.name}: {error}") from None
                values *= scales(start, stop)
        return values


def open_folder(folder: Path) -> SafetensorsCheckpoint:
    """A folder in safetensors, dense or quantized.

    Raises:
        FileNotFoundError: no weights, or a shard is missing.
        BrokenModelFile: a file is damaged, or a matrix lacks a part.
        UnsupportedModel: weights in a form that is not read here.
    """
    settings = quantization(folder)
    if settings:
        return PackedCheckpoint(folder, settings)
    checkpoint = SafetensorsCheckpoint(folder)
    if any(tensor.dtype in float8.DTYPES for tensor in checkpoint.tensors.values()):
        checkpoint.close()
        return PackedCheckpoint(folder, {"quant_method": "fp8"})
    return checkpoint


def _layout(suffix: str, dtype: str, *, is_awq: bool) -> Layout | None:
    """How the matrix is stored of which this is the main tensor; None: it isn't one."""
    if suffix == "qweight":
        return Layout.AWQ if is_awq else Layout.GPTQ
    if suffix == "weight_packed":
        return Layout.PACKED
    if suffix == "weight" and dtype == "I8":
        return Layout.BYTES
    if suffix == "weight" and dtype in float8.DTYPES:
        return Layout.FLOAT8
    return None
