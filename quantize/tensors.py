"""One tensor on its way from a checkpoint into a GGUF file: changed, rounded, in pieces."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.checkpoint import PLAIN, Checkpoint, Floats, StoredTensor, to_float32
from models.errors import BrokenModelFile
from models.families import Change, TensorRule
from models.ggml_types import BLOCKS, GGMLType
from quantize.errors import BadRequest
from quantize.formats.gguf import OutputTensor
from quantize.plan import Target

CHUNK_ELEMENTS = 2**22
"""Numbers that are converted at once: 16 MiB in float32."""

Chunks = Iterator[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Job:
    """One tensor of the result, and how its data is made."""

    tensor: OutputTensor
    chunks: Callable[[], Chunks]
    source_bytes: int


def job_for(
    checkpoint: Checkpoint, sources: tuple[StoredTensor, ...], rule: TensorRule, target: Target
) -> Job:
    """How a tensor of a checkpoint, or a stack of several, becomes one of the result."""
    kind = _type_of(rule, sources[0], target)
    tensor = OutputTensor(rule.target, rule.shape, kind)

    def chunks() -> Chunks:
        for stored in sources:
            yield from _chunks(checkpoint, stored, rule, kind)

    return Job(tensor, chunks, sum(stored.n_bytes for stored in sources))


def _type_of(rule: TensorRule, stored: StoredTensor, target: Target) -> GGMLType:
    """Vectors stay in float32, as llama.cpp wants them; rows that don't fill blocks go to float16."""
    if stored.dtype.startswith("I") and stored.type not in PLAIN and BLOCKS[stored.type].elements == 1:
        return stored.type
    if len(rule.shape) < 2 or rule.exact:
        return GGMLType.F32
    if target.direct is None:
        return stored.type
    if rule.shape[-1] % BLOCKS[target.direct].elements:
        return GGMLType.F16
    return target.direct


def _chunks(checkpoint: Checkpoint, stored: StoredTensor, rule: TensorRule, kind: GGMLType) -> Chunks:
    """The data of one tensor, in pieces that are small beside the machine's memory."""
    changed = rule.change is Change.ADD_ONE or rule.factor != 1.0
    as_is = stored.type is kind and not changed
    step = rule.shape[0] // rule.heads if rule.heads and len(rule.shape) > 1 else 1
    for start, stop in row_ranges(stored, step):
        rows = checkpoint.stored_rows(stored.name, start, stop)
        if as_is and kind not in PLAIN:
            yield rows.reshape(-1).view(np.uint8).data
            continue
        values: npt.NDArray[Any] = rows if as_is else to_float32(rows, stored.type)
        if not _finite(values, stored.type if as_is else GGMLType.F32):
            raise BrokenModelFile(
                f"{stored.file}: {stored.name} holds NaN or infinity: get the checkpoint again"
            )
        if rule.change is Change.INTERLEAVE:
            heads = rule.heads if len(rule.shape) == 1 else (stop - start) // step
            values = interleave(values.reshape(-1, 1) if len(rule.shape) == 1 else values, heads)
        if changed:
            values = _changed(to_float32(values, GGMLType.F32), rule)
        data = values if as_is else _encoded(to_float32(values, GGMLType.F32), kind, stored)
        yield np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def row_ranges(stored: StoredTensor, step: int) -> Iterator[tuple[int, int]]:
    """Row ranges of a tensor, of about CHUNK_ELEMENTS, in multiples of `step`."""
    rows = max(step, CHUNK_ELEMENTS // max(1, stored.columns) // step * step)
    for start in range(0, stored.n_rows, rows):
        yield start, min(start + rows, stored.n_rows)


def interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """From Hugging Face's order of a head's rows (0, 1, ..., d/2, ...) to llama.cpp's (0, d/2, 1, ...).

    Args:
        rows: [heads * head_dim, columns], of any type.
        heads: how many.
    """
    columns = rows.shape[1]
    return rows.reshape(heads, 2, -1, columns).swapaxes(1, 2).reshape(-1, columns)


def _changed(values: Floats, rule: TensorRule) -> Floats:
    if rule.change is Change.ADD_ONE:
        values = values + np.float32(1)
    return values if rule.factor == 1.0 else values * np.float32(rule.factor)


def _finite(values: npt.NDArray[np.generic], kind: GGMLType) -> bool:
    """No NaN and no infinity: in 16 bits those are the ones with all exponent bits set."""
    if kind is GGMLType.F32:
        return bool(np.isfinite(values).all())
    mask = np.uint16(0x7F80 if kind is GGMLType.BF16 else 0x7C00)
    return not bool(((values.view(np.uint16) & mask) == mask).any())


def _encoded(values: Floats, kind: GGMLType, stored: StoredTensor) -> npt.NDArray[np.generic]:
    if kind is GGMLType.F32:
        return values
    if kind is GGMLType.BF16:
        return to_bfloat16(values)
    if kind is GGMLType.F16:
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not _finite(half, GGMLType.F16):
            raise BadRequest(
                f"{stored.name} holds {np.abs(values).max():.3g}, over float16's 65504: take bf16 or f32"
            )
        return half
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    quantized: npt.NDArray[np.generic] = quantize(values, GGMLQuantizationType(int(kind)))
    return quantized


def to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Round to bfloat16, ties to even. Values are finite."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
