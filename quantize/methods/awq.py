"""AWQ (Lin et al. 2023): inputs that are large get finer weights, by scales that cost nothing at run time.

The scales are s = m^a / v^(1-a), m the mean size of each input and v that of the weights that read it, for
the a from 0 to 1 that leaves the outputs closest to what they were. The paper runs the model for each a.
Here the outputs' error is computed from the inputs' Hessian H: the mean square error that a change D of the
weights makes is tr(D H D^T), exactly, whatever the inputs were.

Afterwards the range of each group is searched (the paper's clipping), by the same measure, and the weights
are rounded.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from quantize.methods.folding import FoldGroup, can_fold, fold
from quantize.methods.grid import GridSettings, round_to_grid, search_grid
from quantize.methods.hessian import Hessian, output_error
from quantize.methods.rtn import quantize_matrix as round_matrix
from quantize.methods.solved import Solved

POINTS = 20
SAMPLED_ROWS = 1024
"""Outputs that a scale is judged by. Each is a sum over all inputs, so that a part of them tells."""


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
    """The mean square error of all outputs that were judged."""
    loss_without: float
    """The same with no scales."""


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
        looks = {id(inputs[name]): inputs[name] for name in seen}.values()
        count = sum(look.count for look in looks)
        magnitudes = sum(
            (look.mean_magnitude * (look.count / count) for look in looks), start=torch.tensor(0.0)
        )
        choice = search_scales(
            [weights[f"{name}.weight"] for name in seen],
            [inputs[name].matrix() for name in seen],
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
    stacks = _stacks(weights, hessians, settings.rows)
    sizes = _relative_sizes(weights, settings.grid)
    # A grid is needed for each candidate: the full range, as the paper has it, and quick.
    plain = replace(settings.grid, search=False)
    ones = torch.ones_like(magnitudes, dtype=torch.float32)
    best: ScaleChoice | None = None
    without = 0.0
    for point in range(settings.points):
        exponent = point / settings.points
        scales = _scales(magnitudes.float(), sizes, exponent) if point else ones
        loss = sum(share * _loss(weight, hessian, scales, plain) for weight, hessian, share in stacks)
        if not point:
            without = loss
        if best is None or loss < best.loss:
            best = ScaleChoice(scales, exponent, loss, without)
    assert best is not None
    return best


def _loss(weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor, grid: GridSettings) -> float:
    """What rounding the scaled weights does to the outputs."""
    scaled = weight * scales
    steps, zeros = search_grid(scaled, torch.ones_like(scales), grid)
    rounded = _back(round_to_grid(scaled, steps, zeros, grid), steps, zeros)
    return float(output_error(rounded.div_(scales).sub_(weight), hessian).sum())


def _stacks(
    weights: Sequence[torch.Tensor], hessians: Sequence[torch.Tensor], rows: int
) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Weights with the same Hessian in one, of which a part is taken: (rows, Hessian, 1 / part)."""
    by_hessian: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
    for weight, hessian in zip(weights, hessians, strict=True):
        by_hessian.setdefault(id(hessian), (hessian, []))[1].append(weight.float())
    limit = max(1, rows // len(by_hessian)) if rows else 0
    stacks = []
    for hessian, same in by_hessian.values():
        count = sum(len(weight) for weight in same)
        sample = _sampled(same, limit)
        stacks.append((sample, hessian.float(), count / len(sample)))
    return stacks


def _sampled(weights: list[torch.Tensor], rows: int) -> torch.Tensor:
    """At most so many rows, evenly spread over all of them."""
    stacked = torch.cat(weights)
    if not rows or len(stacked) <= rows:
        return stacked
    picked = torch.linspace(0, len(stacked) - 1, rows, dtype=torch.float64).round().long()
    return stacked[picked.to(stacked.device)]


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
    scales = magnitudes.pow(exponent) / (sizes.pow(1 - exponent) + 1e-4)
    scales = scales.clamp(min=1e-4)
    scales = scales / (scales.max() * scales.min()).sqrt()
    return torch.where(torch.isfinite(scales) & (scales > 0), scales, torch.ones_like(scales))


def _back(integers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Weights of integers [N, K], scales and zero points [N, G]."""
    n, k = integers.shape
    steps = integers.reshape(n, scales.shape[1], -1).to(scales.dtype)
    return steps.sub_(zeros[..., None]).mul_(scales[..., None]).reshape(n, k)


def quantize_matrix(
    weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor | None, settings: AWQSettings
) -> Solved:
    """Search each group's range, and round.

    Args:
        weight: [N, K], already multiplied with the scales.
        hessian: [K, K], of the inputs before they were divided by the scales.
        scales: [K] that were folded; None: none were.
        settings: K is a multiple of its group size.
    """
    if scales is not None:
        hessian = hessian / (scales[:, None] * scales[None, :])
    return round_matrix(weight, settings.grid, hessian, whole=True)
