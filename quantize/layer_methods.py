"""What each method makes of one decoder layer, and how the result is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from models.config import ModelConfig
from quantize.formats import awq as awq_format
from quantize.formats import gptq as gptq_format
from quantize.int8_layers import Int8Layers
from quantize.layer_method import UNSEEN, Inputs, LayerMethod, Quantized, Weights, put, store_folded
from quantize.methods import awq, gptq, rtn
from quantize.methods.folding import fold_groups
from quantize.methods.grid import GridSettings
from quantize.methods.hessian import divided
from quantize.methods.solved import Solved
from quantize.recipe import Format, Method, Order, Recipe


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
                put(weights, name, solved, hessian, done)
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
                put(weights, name, solved, hessian, done)
        return done

    def files(
        self, quantizer: str, ignored: Sequence[str], kept: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """config.json's part, and quant_config.json for older readers."""
        config = awq_format.config(group_size=self.group_size, not_converted=ignored)
        old = awq_format.old_config(group_size=self.group_size, not_converted=ignored)
        return {"config.json": {"quantization_config": config}, "quant_config.json": old}
