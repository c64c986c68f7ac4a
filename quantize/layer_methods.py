"""What each method makes of one decoder layer, and how the result is stored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from models.decoder import DecoderLayer
from models.linear import Linear
from models.quantized_matrix import QuantizedMatrix
from quantize.errors import BadRequest
from quantize.formats import gptq as gptq_format
from quantize.formats.safetensors import Tensor
from quantize.methods import gptq, rtn
from quantize.methods.grid import GridSettings
from quantize.methods.hessian import Hessian, output_error
from quantize.methods.solved import Solved
from quantize.recipe import Format, Method, Order, Recipe


@dataclass(frozen=True, slots=True)
class Inputs:
    """Matrices that see the same input, and what it looks like."""

    names: tuple[str, ...]
    """Such as "self_attn.q_proj"."""
    hessian: Hessian | None
    """None: nothing came by, or nobody looked."""


@dataclass(frozen=True, slots=True)
class MatrixRecord:
    """How well a matrix went, for the receipt."""

    name: str
    error: float
    """Mean square error over mean square: of its outputs where text was read, else of its weights."""
    note: str = ""


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

    def quantize(self, layer: DecoderLayer, inputs: Sequence[Inputs]) -> Quantized:
        """Put the quantized matrices in the place of the layer's own."""
        ...

    def files(self, quantizer: str) -> dict[str, dict[str, Any]]:
        """JSON files of the result: "config.json" holds what is added to the source's."""
        ...

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Refuse matrices that can't be stored.

        Raises:
            BadRequest: with what is wrong.
        """
        ...


def method_of(recipe: Recipe, dtype: str) -> LayerMethod:
    """The method of a recipe, whose group size is known.

    Args:
        recipe: what was asked for.
        dtype: of the model, as safetensors calls it.
    """
    if recipe.format is Format.GPTQ:
        return GPTQLayers(recipe)
    raise BadRequest(f"--to {recipe.format} is not there")


class GPTQLayers:
    """GPTQ, or rounding to the nearest, in AutoGPTQ's layout."""

    magnitudes = False

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        size = recipe.group_size
        if size is None:
            raise ValueError("the group size is not known")
        self.grid = GridSettings(recipe.bits, size, recipe.symmetric)
        order = {Order.STATIC: gptq.Order.STATIC, Order.CLASSIC: gptq.Order.CLASSIC}[recipe.order]
        self.settings = gptq.GPTQSettings(self.grid, order, recipe.damping)
        self.layout = gptq_format.CheckpointFormat(recipe.checkpoint_format)

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Refuse matrices that don't fill words."""
        for name, (rows, columns) in shapes.items():
            gptq_format.check_shape(name, rows, columns, self.recipe.bits)

    def quantize(self, layer: DecoderLayer, inputs: Sequence[Inputs]) -> Quantized:
        """One group of matrices after the other."""
        done = Quantized()
        for group in inputs:
            weights = [weight_of(layer, name) for name in group.names]
            hessian = None if group.hessian is None else group.hessian.matrix()
            for name, weight, solved in zip(group.names, weights, self._solve(weights, hessian), strict=True):
                error = relative_error(weight, solved, hessian)
                store(layer, name, weight, solved.matrix, done)
                done.tensors |= gptq_format.layer_tensors(name, solved.matrix, self.layout)
                done.records.append(MatrixRecord(name, error, solved.note))
        return done

    def _solve(self, weights: Sequence[torch.Tensor], hessian: torch.Tensor | None) -> list[Solved]:
        if self.recipe.method is Method.RTN:
            return [rtn.quantize_matrix(weight, self.grid) for weight in weights]
        if hessian is None:
            unseen = "no token came by: rounded to the nearest"
            solved = [rtn.quantize_matrix(weight, self.grid) for weight in weights]
            return [Solved(one.matrix, one.loss, unseen) for one in solved]
        return gptq.quantize_matrices(weights, hessian, self.settings)

    def files(self, quantizer: str) -> dict[str, dict[str, Any]]:
        """config.json's part, and quantize_config.json."""
        recipe = self.recipe
        config = gptq_format.config(
            bits=recipe.bits,
            group_size=self.grid.group_size,
            symmetric=recipe.symmetric,
            desc_act=recipe.order is Order.CLASSIC and recipe.method is Method.GPTQ,
            static_groups=recipe.order is Order.STATIC,
            damping=recipe.damping,
            checkpoint_format=self.layout,
            quantizer=quantizer,
        )
        return {"config.json": {"quantization_config": config}, "quantize_config.json": config}


def weight_of(layer: DecoderLayer, name: str) -> torch.Tensor:
    """The dense weight of a matrix of the layer, float32 [N, K]."""
    linear = layer.linears[name]
    if not isinstance(linear, Linear):
        raise TypeError(f"{name} is {type(linear).__name__}")
    return linear.weight


def store(
    layer: DecoderLayer, name: str, weight: torch.Tensor, matrix: QuantizedMatrix, done: Quantized
) -> None:
    """Put a quantized matrix, dequantized, in the place of the layer's own, whose bias stays."""
    linear = layer.linears[name]
    bias = linear.bias if isinstance(linear, Linear) else None
    dense = torch.from_numpy(matrix.dense()).to(weight.device, weight.dtype, copy=True)
    layer.linears[name] = Linear(dense, bias)
    done.replaced.add(f"{name}.weight")


def relative_error(weight: torch.Tensor, solved: Solved, hessian: torch.Tensor | None) -> float:
    """Mean square error over mean square: of the outputs, or without a Hessian of the weights."""
    if hessian is None:
        difference = solved.dense(weight) - weight
        return _ratio(difference.square().sum().item(), weight.square().sum().item())
    loss = float(solved.loss.sum())
    if not math.isfinite(loss):
        loss = output_error(solved.dense(weight) - weight, hessian).sum().item()
    return _ratio(loss, output_error(weight, hessian).sum().item())


def _ratio(error: float, whole: float) -> float:
    return error / whole if whole > 0 else 0.0
