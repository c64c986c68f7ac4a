"""What a method is given of a decoder layer, and what it gives back."""

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from models.config import ModelConfig
from quantize.formats.safetensors import Tensor
from quantize.methods.folding import FoldGroup
from quantize.methods.hessian import Hessian, output_error
from quantize.methods.int8 import Int8Solved
from quantize.methods.solved import Solved
from quantize.resume import MatrixRecord
from quantize.tensors import to_bfloat16

Weights = MutableMapping[str, torch.Tensor]
"""A layer's tensors, such as "self_attn.q_proj.weight", in float32."""

UNSEEN = "no token came by: rounded to the nearest"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Matrices that see the same input, and what it looks like."""

    names: tuple[str, ...]
    """Such as "self_attn.q_proj"."""
    hessian: Hessian | None
    """None: nothing came by, or nobody looked."""
    tokens: torch.Tensor | None = None
    """A sample of the input, float32 [T, K]; where the method wants one and something came by."""
    states: torch.Tensor | None = None
    """What goes into the layer, of the same tokens where all of them come by: float32 [T, D]."""


@dataclass(slots=True)
class Quantized:
    """What became of a layer."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """To be stored, under names without "model.layers.N."; they replace `replaced`."""
    replaced: set[str] = field(default_factory=set)
    """Tensors of the source that are not stored as they were."""
    records: list[MatrixRecord] = field(default_factory=list)


class LayerMethod(Protocol):
    """Quantizes a layer in place."""

    magnitudes: bool
    """Whether `Hessian` must keep mean and maximum of |x|."""
    sampled: bool
    """Whether a sample of each input must be kept."""
    sequential: bool
    """A group of matrices can be quantized without a look at those that come after it: `quantize` may be
    given the inputs of some groups only, and then of the next."""
    weighs: bool
    """Errors in what a layer adds to what goes by count as the next norm makes of them."""

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Refuse matrices that can't be stored.

        Raises:
            BadRequest: with what is wrong.
        """
        ...

    def quantize(
        self, weights: Weights, config: ModelConfig, index: int, inputs: Sequence[Inputs]
    ) -> Quantized:
        """Put what the quantized layer computes with in the place of the layer's tensors."""
        ...

    def files(
        self, quantizer: str, ignored: Sequence[str], kept: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """JSON files of the result: "config.json" holds what is added to the source's.

        Args:
            quantizer: "name:version" of who wrote it.
            ignored: linear modules that are not quantized.
            kept: modules whose inputs are not rounded, though the scheme rounds others.
        """
        ...


def store_folded(weights: Weights, groups: Sequence[FoldGroup], dtype: str, done: Quantized) -> None:
    """Have what scales were folded into stored as it now is, in the model's type. A norm's rounding goes to
    its readers, so that the product stays what it was."""
    for group in groups:
        for part in ("weight", "bias"):
            source = f"{group.source}.{part}"
            before = weights.get(source)
            if before is None or before.ndim > 1:
                continue  # a matrix is quantized itself
            weights[source] = _stored(before, dtype, source, done)
            if part == "weight":
                one = 1.0 if group.source_adds_one else 0.0
                ratio = (before + one) / (weights[source] + one)
                ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, torch.ones_like(ratio))
                for name in (*group.targets, *group.followers):
                    weights[f"{name}.weight"] = weights[f"{name}.weight"] * ratio
        for name in group.followers:
            weights[f"{name}.weight"] = _stored(weights[f"{name}.weight"], dtype, f"{name}.weight", done)


def _stored(values: torch.Tensor, dtype: str, name: str, done: Quantized) -> torch.Tensor:
    """Rounded to the model's type, and to be stored so."""
    rounded = values.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]).float()
    array = rounded.cpu().numpy()
    if dtype == "BF16":
        done.tensors[name] = Tensor(to_bfloat16(array), "BF16")
    else:
        done.tensors[name] = Tensor(array.astype({"F32": "float32", "F16": "float16"}[dtype]))
    done.replaced.add(name)
    return rounded


def put(
    weights: Weights,
    name: str,
    solved: Solved | Int8Solved,
    hessian: torch.Tensor | None,
    done: Quantized,
) -> None:
    """Put a matrix, dequantized, in the place of the dense one, and note how well it went."""
    key = f"{name}.weight"
    weight = weights[key]
    dense = solved.dense(weight)
    if hessian is None:
        error, whole = (dense - weight).square().sum().item(), weight.square().sum().item()
    else:
        error = float(solved.loss.sum())
        if not math.isfinite(error):
            error = output_error(dense - weight, hessian).sum().item()
        whole = output_error(weight, hessian).sum().item()
    done.records.append(MatrixRecord(name, error / whole if whole > 0 else 0.0, solved.note))
    done.replaced.add(key)
    weights[key] = dense.clone()  # in torch's own memory: see `streaming.aligned`
