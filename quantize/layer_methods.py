"""What each method makes of one decoder layer, and how the result is stored."""

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from models.config import ModelConfig
from quantize.formats import awq as awq_format
from quantize.formats import compressed_tensors as int8_format
from quantize.formats import gptq as gptq_format
from quantize.formats.safetensors import Tensor
from quantize.kept_inputs import ADDING, GoesBy
from quantize.methods import awq, gptq, int8, rtn, smoothing
from quantize.methods.folding import FoldGroup, can_fold, fold, fold_groups
from quantize.methods.grid import GridSettings
from quantize.methods.hessian import Hessian, divided, output_error
from quantize.methods.solved import Solved
from quantize.recipe import Format, Method, Order, Recipe
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


def method_of(recipe: Recipe, dtype: str) -> LayerMethod:
    """The method of a recipe whose group size is known.

    Args:
        recipe: what was asked for.
        dtype: of the model, as safetensors calls it.
    """
    if recipe.format is Format.GPTQ:
        return GPTQLayers(recipe)
    return AWQLayers(recipe, dtype) if recipe.format is Format.AWQ else Int8Layers(recipe, dtype)


class GPTQLayers:
    """GPTQ, or rounding to the nearest, in AutoGPTQ's layout."""

    magnitudes = False
    sampled = False
    sequential = True
    weighs = True

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.grid = GridSettings(recipe.bits, recipe.size, recipe.symmetric)
        order = gptq.Order(recipe.order)
        self.settings = gptq.GPTQSettings(self.grid, order, recipe.damping, own_damping=True, refit=True)
        self.layout = gptq_format.CheckpointFormat(recipe.checkpoint_format)

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Refuse matrices that don't fill words."""
        for name, (rows, columns) in shapes.items():
            gptq_format.check_shape(name, rows, columns, self.recipe.bits)

    def quantize(
        self, weights: Weights, config: ModelConfig, index: int, inputs: Sequence[Inputs]
    ) -> Quantized:
        """One group of matrices after the other."""
        done = Quantized()
        for group in inputs:
            dense = [weights[f"{name}.weight"] for name in group.names]
            hessian = None if group.hessian is None else group.hessian.matrix()
            for name, solved in zip(group.names, self._solve(dense, hessian), strict=True):
                done.tensors |= gptq_format.layer_tensors(name, solved.matrix, self.layout)
                _put(weights, name, solved, hessian, done)
        return done

    def _solve(self, weights: Sequence[torch.Tensor], hessian: torch.Tensor | None) -> list[Solved]:
        if self.recipe.method is Method.RTN:
            return [rtn.quantize_matrix(weight, self.grid) for weight in weights]
        if hessian is None:
            solved = [rtn.quantize_matrix(weight, self.grid) for weight in weights]
            return [replace(one, note=UNSEEN) for one in solved]
        return gptq.quantize_matrices(weights, hessian, self.settings)

    def files(
        self, quantizer: str, ignored: Sequence[str], kept: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
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


class AWQLayers:
    """AWQ, in AutoAWQ's layout."""

    magnitudes = True
    sampled = False
    sequential = False
    weighs = False

    def __init__(self, recipe: Recipe, dtype: str) -> None:
        self.group_size = recipe.size
        self.dtype = dtype
        self.settings = awq.AWQSettings(GridSettings(4, recipe.size, symmetric=False))

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Refuse matrices that don't fill words."""
        for name, (rows, columns) in shapes.items():
            awq_format.check_shape(name, rows, columns, self.group_size)

    def quantize(
        self, weights: Weights, config: ModelConfig, index: int, inputs: Sequence[Inputs]
    ) -> Quantized:
        """Scales first, folded into whatever stands before; then each matrix."""
        done = Quantized()
        seen = {name: group.hessian for group in inputs if group.hessian for name in group.names}
        groups = fold_groups(config, index)
        chosen = awq.fold_layer(weights, groups, seen, self.settings)
        folded = [group for group in groups if any(name in chosen for name in group.targets)]
        store_folded(weights, folded, self.dtype, done)
        for group in inputs:
            hessian = None if group.hessian is None else group.hessian.matrix()
            choice = chosen.get(group.names[0])
            if hessian is not None and choice is not None:
                hessian = divided(hessian, choice.scales)
            for name in group.names:
                weight = weights[f"{name}.weight"]
                if hessian is None:
                    solved = replace(rtn.quantize_matrix(weight, self.settings.grid), note=UNSEEN)
                else:
                    solved = awq.quantize_matrix(weight, hessian, self.settings)
                done.tensors |= awq_format.layer_tensors(name, solved.matrix)
                _put(weights, name, solved, hessian, done)
        return done

    def files(
        self, quantizer: str, ignored: Sequence[str], kept: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """config.json's part, and quant_config.json for older readers."""
        config = awq_format.config(group_size=self.group_size, not_converted=ignored)
        old = awq_format.old_config(group_size=self.group_size, not_converted=ignored)
        return {"config.json": {"quantization_config": config}, "quant_config.json": old}


class Int8Layers:
    """A scale for each output, in compressed-tensors' layout."""

    magnitudes = False
    weighs = False

    def __init__(self, recipe: Recipe, dtype: str) -> None:
        self.scheme = int8_format.Scheme(recipe.scheme.value)
        self.dtype = dtype
        self.solves = recipe.method is Method.GPTQ
        self.smooth = recipe.smooth
        self.sampled = self.scheme is int8_format.Scheme.W8A8
        self.sequential = not self.sampled

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """All can be stored but some rows that don't fill words, which is said when they are met."""

    def quantize(
        self, weights: Weights, config: ModelConfig, index: int, inputs: Sequence[Inputs]
    ) -> Quantized:
        """One group of matrices after the other; outliers go over to the weights first, where that was
        asked for and the inputs are rounded."""
        done = Quantized()
        groups = self._scales(weights, fold_groups(config, index), inputs) if self.smooth else []
        scaled = {name: scales for group, scales in groups for name in group.targets}
        kept = self._kept(weights, config, inputs, scaled)
        groups = [(group, scales) for group, scales in groups if kept.isdisjoint(group.targets)]
        for group, scales in groups:
            fold(weights, group, scales)
        store_folded(weights, [group for group, _ in groups], self.dtype, done)
        for one in inputs:
            dense = [weights[f"{name}.weight"] for name in one.names]
            hessian = None if one.hessian is None else one.hessian.matrix()
            keeps = not kept.isdisjoint(one.names)
            tokens, divisors = (None, None) if keeps else (one.tokens, scaled.get(one.names[0]))
            if hessian is not None and divisors is not None:
                hessian = divided(hessian, divisors)
                tokens = None if tokens is None else tokens / divisors
            scheme = int8_format.Scheme.W8A16 if keeps else self.scheme
            for name, solved in zip(one.names, self._solve(dense, hessian, tokens), strict=True):
                done.tensors |= int8_format.layer_tensors(name, solved.matrix, scheme, self.dtype)
                _put(weights, name, solved, hessian, done)
                done.records[-1] = replace(done.records[-1], keeps_inputs=keeps)
        return done

    @staticmethod
    def _scales(
        weights: Weights, groups: Sequence[FoldGroup], inputs: Sequence[Inputs]
    ) -> list[tuple[FoldGroup, torch.Tensor]]:
        """What inputs are to be divided by, where that can be folded in."""
        samples = {name: group.tokens for group in inputs for name in group.names}
        found = []
        for group in groups:
            by_sample = {id(one): one for name in group.targets if (one := samples.get(name)) is not None}
            if by_sample and can_fold(weights, group):
                readers = [weights[f"{name}.weight"] for name in group.targets]
                found.append((group, smoothing.balanced(readers, torch.cat(list(by_sample.values())))))
        return found

    def _kept(
        self,
        weights: Weights,
        config: ModelConfig,
        inputs: Sequence[Inputs],
        scaled: Mapping[str, torch.Tensor],
    ) -> set[str]:
        """The matrices whose inputs are not to be rounded."""
        kept: set[str] = set()
        states = inputs[0].states if inputs else None
        if states is None or not self.solves:
            return kept
        goes_by = GoesBy(config, weights, states)
        for one in inputs:
            name = one.names[0]
            if (
                name in ADDING
                and one.tokens is not None
                and goes_by.keeps(name, one.tokens, scaled.get(name))
            ):
                kept.add(name)
        return kept

    def _solve(
        self, weights: Sequence[torch.Tensor], hessian: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> list[int8.Int8Solved]:
        if not self.solves or hessian is None:
            note = UNSEEN if self.solves else ""
            found = [int8.quantize_matrix(one, scale_dtype=self.dtype, hessian=hessian) for one in weights]
            return [replace(one, note=note) for one in found]
        noise = None if tokens is None else int8.rounding_noise(tokens)
        return int8.solve_matrices(weights, hessian, noise, scale_dtype=self.dtype)

    def files(
        self, quantizer: str, ignored: Sequence[str], kept: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """config.json's part."""
        return {"config.json": {"quantization_config": int8_format.config(self.scheme, ignored, kept)}}


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


def _put(
    weights: Weights,
    name: str,
    solved: Solved | int8.Int8Solved,
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
