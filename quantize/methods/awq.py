"""AWQ (Lin et al. 2023): inputs that are large get finer weights, by scales that cost nothing at run time.

The scales are s = m^a / v^(1-a), m the mean size of each input and v that of the weights that read it, for
the a from 0 to 1 that leaves the outputs closest to what they were. The paper runs the model for each a.
Here the outputs' error is computed from the inputs' Hessian H: the mean square error that a change D of the
weights makes is tr(D H D^T), exactly, whatever the inputs were. All exponents are judged by a few outputs
first, and the best of them by more.

Afterwards the range of each group is searched (the paper's clipping), by the same measure, and the weights
are rounded.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from quantize.methods.folding import FoldGroup, can_fold, fold
from quantize.methods.grid import GridSettings, candidates, snap
from quantize.methods.hessian import Hessian, output_error
from quantize.methods.rtn import quantize_matrix as round_matrix
from quantize.methods.sampling import spread
from quantize.methods.solved import Solved

POINTS = 20
SAMPLED_ROWS = 1024
"""Outputs that a scale is judged by. Each is a sum over all inputs, so that a part of them tells."""
GLANCED_ROWS = 128
"""Outputs that all exponents are judged by, to find those that come into question."""
SHORTLIST = 5
"""Exponents that do. On SmolLM2's layers the best of all is among them, or one with 0.6 % more error."""


@dataclass(frozen=True, slots=True)
class AWQSettings:
    """How to search."""

    grid: GridSettings = field(default_factory=lambda: GridSettings(symmetric=False))
    points: int = POINTS
    """Exponents that are tried."""
    rows: int = SAMPLED_ROWS
    """Outputs that they are judged by, at most; 0: all."""


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """Scales, and what they bring."""

    scales: torch.Tensor
    """float32 [K]: what weights are multiplied with and inputs divided by."""
    exponent: float
    loss: float
    """The mean square error of all outputs, as far as it was judged."""


def fold_layer(
    weights: MutableMapping[str, torch.Tensor],
    groups: Sequence[FoldGroup],
    inputs: Mapping[str, Hessian],
    settings: AWQSettings,
) -> dict[str, ScaleChoice]:
    """Find the scales of a layer's groups, one after the other, and fold them in.

    Args:
        weights: a layer's tensors, "....weight" and "....bias": new ones are put in place of the old.
        groups: of `fold_groups`.
        inputs: of each matrix, with magnitudes; those that see the same input may share one. Where nothing
            came by (an expert that no token chose) there is none.
        settings: as for each.

    Returns:
        For each matrix whose inputs are now scaled. A group that can't be folded is left out.
    """
    chosen: dict[str, ScaleChoice] = {}
    for group in groups:
        seen = [name for name in group.targets if name in inputs and inputs[name].count]
        if not seen or not can_fold(weights, group):
            continue
        looks = {id(inputs[name]): inputs[name] for name in seen}
        count = sum(look.count for look in looks.values())
        magnitudes = sum(
            (look.mean_magnitude * (look.count / count) for look in looks.values()), start=torch.tensor(0.0)
        )
        matrices = {key: look.matrix() for key, look in looks.items()}
        choice = search_scales(
            [weights[f"{name}.weight"] for name in seen],
            [matrices[id(inputs[name])] for name in seen],
            magnitudes,
            settings,
        )
        if choice.exponent:
            fold(weights, group, choice.scales)
            chosen |= dict.fromkeys(group.targets, choice)
    return chosen


def search_scales(
    weights: Sequence[torch.Tensor],
    hessians: Sequence[torch.Tensor],
    magnitudes: torch.Tensor,
    settings: AWQSettings,
) -> ScaleChoice:
    """The best scales for matrices that see the same inputs.

    Args:
        weights: [N_i, K] each.
        hessians: [K, K] for each, of the inputs as they are; the same one, or of an expert's own inputs.
        magnitudes: [K]: mean |x| of each input.
        settings: K is a multiple of its group size.

    Returns:
        All ones, of exponent 0, where none is better than that.
    """
    sizes = _relative_sizes(weights, settings.grid)
    exponents = [point / settings.points for point in range(settings.points)]
    tried = [torch.ones_like(sizes)] + [_scales(magnitudes, sizes, exponent) for exponent in exponents[1:]]
    stacks = _stacks(weights, hessians)
    if settings.rows:
        stacks = _thinned(stacks, settings.rows)
    few = _thinned(stacks, GLANCED_ROWS)
    points = list(range(settings.points))
    if any(len(part.weight) < len(stack.weight) for part, stack in zip(few, stacks, strict=True)):
        glanced = [sum(stack.loss(scales, settings.grid) for stack in few) for scales in tried]
        points = sorted(sorted(points, key=glanced.__getitem__)[:SHORTLIST])
    losses = [sum(stack.loss(tried[point], settings.grid) for stack in stacks) for point in points]
    loss, best = min(zip(losses, points, strict=True))
    return ScaleChoice(tried[best], exponents[best], loss)


@dataclass(frozen=True, slots=True)
class _Stack:
    """Matrices with the same inputs in one, or some of its rows."""

    weight: torch.Tensor
    """float32 [N, K]."""
    hessian: torch.Tensor
    """float32 [K, K]."""
    share: float = 1.0
    """Of all rows."""

    def thinned(self, rows: int) -> Self:
        """At most so many rows, evenly spread."""
        picked = spread(self.weight, rows)
        return replace(self, weight=picked, share=self.share * len(picked) / len(self.weight))

    def loss(self, scales: torch.Tensor, grid: GridSettings) -> float:
        """What rounding does to the outputs, all of them, with these scales."""
        return _loss(self.weight, self.hessian, scales, grid) / self.share


def _stacks(weights: Sequence[torch.Tensor], hessians: Sequence[torch.Tensor]) -> list[_Stack]:
    """Weights by their Hessians."""
    by_hessian: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
    for weight, hessian in zip(weights, hessians, strict=True):
        by_hessian.setdefault(id(hessian), (hessian, []))[1].append(weight.float())
    return [_Stack(torch.cat(same), hessian.float()) for hessian, same in by_hessian.values()]


def _thinned(stacks: Sequence[_Stack], rows: int) -> list[_Stack]:
    """At most so many rows of all stacks, but one of each."""
    return [stack.thinned(max(1, rows // len(stacks))) for stack in stacks]


def _loss(weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor, grid: GridSettings) -> float:
    """What rounding the scaled weights does to the outputs."""
    n, k = weight.shape
    groups = (weight * scales).reshape(n, -1, grid.columns(k))
    step, zero = next(candidates(groups, grid))  # the full range, as the paper has it, and quick
    rounded = snap(groups, step, zero, grid).reshape(n, k)
    return float(output_error(rounded.div_(scales).sub_(weight), hessian).sum())


def _relative_sizes(weights: Sequence[torch.Tensor], grid: GridSettings) -> torch.Tensor:
    """The mean size of each column's weights relative to the largest of their group, float32 [K]."""
    total: torch.Tensor | None = None
    count = 0
    for weight in weights:
        n, k = weight.shape
        groups = weight.float().abs().reshape(n, -1, grid.columns(k))
        relative = (groups / groups.amax(-1, keepdim=True).clamp(min=1e-6)).reshape(n, k).sum(0)
        total = relative if total is None else total + relative
        count += n
    if total is None:
        raise ValueError("no weights to search scales for")
    return total / max(1, count)


def _scales(magnitudes: torch.Tensor, sizes: torch.Tensor, exponent: float) -> torch.Tensor:
    """m^a / v^(1-a), with a geometric middle of 1."""
    scales = magnitudes.float().pow(exponent) / (sizes.pow(1 - exponent) + 1e-4)
    scales = scales.clamp(min=1e-4)
    scales = scales / (scales.max() * scales.min()).sqrt()
    return torch.where(torch.isfinite(scales) & (scales > 0), scales, torch.ones_like(scales))


def quantize_matrix(weight: torch.Tensor, hessian: torch.Tensor, settings: AWQSettings) -> Solved:
    """Search each group's range, and round.

    Args:
        weight: [N, K], already multiplied with the scales.
        hessian: [K, K], of the inputs divided by them.
        settings: K is a multiple of its group size.
    """
    return round_matrix(weight, settings.grid, hessian, whole=True)
