"""INT8 and one decoder layer, in compressed-tensors' layout."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from models.config import ModelConfig
from quantize.formats import compressed_tensors as int8_format
from quantize.kept_inputs import ADDING, GoesBy
from quantize.layer_method import UNSEEN, Inputs, Quantized, Weights, put, store_folded
from quantize.methods import int8, smoothing
from quantize.methods.folding import FoldGroup, can_fold, fold, fold_groups
from quantize.methods.hessian import divided
from quantize.recipe import Method, Recipe


class Int8Layers:
    """A scale for each output; what goes in may be rounded, too, but where that costs much."""

    magnitudes = False

    def __init__(self, recipe: Recipe, dtype: str) -> None:
        self.scheme = int8_format.Scheme(recipe.scheme.value)
        self.dtype = dtype
        self.solves = recipe.method is Method.GPTQ
        self.smooth = recipe.smooth
        self.sampled = self.scheme is int8_format.Scheme.W8A8
        self.sequential = self.weighs = not self.sampled

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
                put(weights, name, solved, hessian, done)
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
