"""A GGUF file seen as a Hugging Face checkpoint: tensors under the names, and with the order of rows, that
transformers has. Nothing is written; rows are put in order when they are asked for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.checkpoint import PLAIN, Floats, GGUFCheckpoint, Stored, StoredTensor, to_float32
from models.closing import Closing
from models.config import ModelConfig
from models.errors import damaged
from models.families import Change, Family, TensorRule
from models.ggml_types import GGMLType

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor of the view is in the file."""

    stored: StoredTensor
    """The file's."""
    rule: TensorRule
    first: int
    """The row that it begins at: an expert's matrix is a part of a stack."""
    order: Order | None
    """The file's row for each row of the view; None: as they are."""


class GGUFView(Closing):
    """A checkpoint of the names that `save_pretrained` would use.

    Matrices keep the file's type where that is F32, F16 or BF16, and are seen in float32 where they are
    quantized. What no layer multiplies with (the embedding, the output matrix) is rounded to bfloat16 of a
    quantized file: it is stored as it is in what is made of the view. Vectors, which llama.cpp keeps in
    float32, are of the model's type wherever that loses nothing.
    """

    def __init__(self, checkpoint: GGUFCheckpoint, family: Family, config: ModelConfig) -> None:
        """
        Args:
            checkpoint: the file.
            family: of the model.
            config: of the model.

        Raises:
            BrokenModelFile: a tensor is missing, or of another shape than the metadata say.
        """
        self.path: Path = checkpoint.path
        self.checkpoint = checkpoint
        embedding = checkpoint.tensors.get("token_embd.weight")
        if embedding is None:
            raise damaged(checkpoint.path, "it lacks token_embd.weight")
        self.dtype = embedding.type if embedding.type in PLAIN else GGMLType.BF16
        """Of the model."""
        matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1]
        self.quantized = sorted({tensor.type.name for tensor in matrices if tensor.type not in PLAIN})
        """The types of the matrices that are dequantized."""
        self._places: dict[str, _Place] = {}
        tied = config.tied and "output.weight" not in checkpoint.tensors
        for rule in family.tensors(config, tied=tied):
            self._place(rule)
        self.tensors: Mapping[str, StoredTensor] = {
            name: self._seen(name, place) for name, place in self._places.items()
        }

    def close(self) -> None:
        """Close the file."""
        self.checkpoint.close()

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        """Rows [start, stop) of a tensor, dequantized: float32 [rows, columns]."""
        tensor = self.tensors[name]
        if tensor.type is GGMLType.F32:
            return self._values(self._places[name], start, stop)
        return to_float32(self.stored_rows(name, start, stop), tensor.type)

    def stored_rows(self, name: str, start: int = 0, stop: int | None = None) -> Stored:
        """The same rows in the type that `tensors` says: float32, float16 or uint16 (bfloat16)."""
        place, tensor = self._places[name], self.tensors[name]
        if place.stored.type is tensor.type and not _changes(place.rule):
            return self._raw(place, start, stop)
        values = self._values(place, start, stop)
        return _narrowed(values, tensor.type)

    def _place(self, rule: TensorRule) -> None:
        stored = self.checkpoint.tensors.get(rule.target)
        if stored is None:
            raise damaged(self.path, f"it lacks {rule.target}")
        if stored.shape != rule.shape:
            raise damaged(
                self.path,
                f"{rule.target} has the shape {list(stored.shape)}, its metadata make it {list(rule.shape)}",
            )
        order = None
        if rule.change is Change.INTERLEAVE:
            # llama.cpp's rows of a head are (0, d/2, 1, d/2 + 1, ...).
            order = np.arange(rule.shape[0]).reshape(rule.heads, -1, 2).transpose(0, 2, 1).reshape(-1)
        for number, name in enumerate(rule.sources):
            first = number * rule.shape[1] if rule.parts else 0
            self._places.setdefault(name, _Place(stored, rule, first, order))

    def _seen(self, name: str, place: _Place) -> StoredTensor:
        stored, rule = place.stored, place.rule
        shape = rule.source_shape
        seen = replace(
            stored, name=name, shape=shape, type=GGMLType.F32, n_bytes=stored.n_bytes // len(rule.sources)
        )
        kind = self._kind(place, name, shape)
        return replace(seen, type=kind, dtype=kind.name)

    def _kind(self, place: _Place, name: str, shape: tuple[int, ...]) -> GGMLType:
        """The type that it is seen in."""
        stored, rule = place.stored, place.rule
        if stored.type in PLAIN and stored.type is not GGMLType.F32 and not _changes(rule):
            return stored.type
        if len(shape) < 2 or rule.exact:
            return self.dtype if _fits(self._values(place, 0, None), self.dtype) else GGMLType.F32
        if stored.type not in PLAIN and not name.startswith("model.layers."):
            return self.dtype
        return GGMLType.F32

    def _raw(self, place: _Place, start: int, stop: int | None) -> Stored:
        """Rows as the file has them, in the view's order."""
        rule = place.rule
        shape = rule.source_shape
        count = math.prod(shape[:-1])
        stop = count if stop is None else stop
        if not 0 <= start <= stop <= count:
            raise ValueError(f"rows {start} to {stop} of {rule.source}, which has {count}")
        read = self.checkpoint.stored_rows
        if place.order is None:
            return read(place.stored.name, place.first + start, place.first + stop)
        rows: Stored = read(place.stored.name)
        return rows[:, place.order] if len(shape) == 1 else rows[place.order[start:stop]]

    def _values(self, place: _Place, start: int, stop: int | None) -> Floats:
        """Rows in float32, with llama.cpp's change undone."""
        values = to_float32(self._raw(place, start, stop), place.stored.type)
        if place.rule.factor != 1.0:
            values = values / np.float32(place.rule.factor)
        return values - np.float32(1) if place.rule.change is Change.ADD_ONE else values


def _changes(rule: TensorRule) -> bool:
    """Whether numbers change, and not only their order."""
    return rule.factor != 1.0 or rule.change is Change.ADD_ONE


def _narrowed(values: Floats, kind: GGMLType) -> Stored:
    """Rounded to a type, ties to even."""
    if kind is GGMLType.F32:
        return values
    if kind is GGMLType.F16:
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def _fits(values: Floats, kind: GGMLType) -> bool:
    """Whether a type holds these numbers without rounding."""
    if not np.isfinite(values).all():
        return False
    with np.errstate(over="ignore"):
        return bool(np.array_equal(to_float32(_narrowed(values, kind), kind), values))
