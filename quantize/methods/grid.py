"""Scales and zero points: the grid that a group of weights is rounded to.

For each group a dozen ranges, from one that holds its largest weight down to a good deal less, are tried, and
the one with the least weighted square error is taken. A range that cuts off the largest weight
often wins: it rounds all the others finer. Scales are rounded to float16 before they are judged, so what is
judged is what is stored.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

CHUNK_ELEMENTS = 2**18
"""Weights that are searched at once: 1 MiB, which stays in the cache over all candidates."""
DEVICE_CHUNK_ELEMENTS = 2**24
"""The same where torch computes on something else than the CPU."""

POINTS = 12
"""Twice as many found nothing better on SmolLM2's layers."""
NARROWEST = {2: 0.5, 3: 0.6, 4: 0.75, 8: 0.95}
"""Times the range that the largest weight needs."""

SIGNIFICANT_BITS = 7
"""Of an asymmetric scale: with a zero point of four bits the offset then fits float16's eleven, so that
GGUF's Q4_1, which stores the offset, holds it exactly."""

LARGEST = 65504.0  # of float16
FLOAT16_BITS, BFLOAT16_BITS = 11, 8
"""Significant binary digits of these types."""


@dataclass(frozen=True, slots=True)
class GridSettings:
    """What grid to round to.

    Raises:
        ValueError: no such grid.
    """

    bits: int = 4
    group_size: int = 128
    """Columns that share a scale: 32, 64, 128, or -1 for the whole row."""
    symmetric: bool = True
    """The zero point stands in the middle."""
    signed: bool = True
    """A symmetric scale may be negative: then the largest weight, where it is positive, takes the integer
    farthest from the middle, which has one more below than above (llama.cpp's Q4_0 does the same)."""
    scale_bits: int = FLOAT16_BITS
    """Significant binary digits of a symmetric scale, at most float16's."""

    def __post_init__(self) -> None:
        if self.bits not in NARROWEST:
            raise ValueError(f"{self.bits} bits: 2, 3, 4 and 8 are supported")
        if self.group_size not in {-1, 32, 64, 128}:
            raise ValueError(f"groups of {self.group_size}: 32, 64, 128 and -1 are supported")

    def columns(self, columns: int) -> int:
        """Columns in a group of a matrix with so many.

        Raises:
            ValueError: the groups don't divide them.
        """
        size = columns if self.group_size == -1 else self.group_size
        if columns % size:
            raise ValueError(f"groups of {size} don't divide {columns} columns")
        return size

    @property
    def middle(self) -> int:
        """The zero point of symmetric groups."""
        return 1 << (self.bits - 1)

    @property
    def top(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    def ratios(self) -> list[float]:
        """The ranges to try, times the full one."""
        narrowest = NARROWEST[self.bits]
        return [1 - (1 - narrowest) * i / (POINTS - 1) for i in range(POINTS)]


def search_grid(
    weight: torch.Tensor, importance: torch.Tensor, settings: GridSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best grid of each group.

    Args:
        weight: float [N, K].
        importance: [K]: what a square error in a column costs, such as the Hessian's diagonal.
        settings: K is a multiple of its group size.

    Returns:
        scales [N, G] of weight's dtype, each a float16's value and not 0, symmetric ones of either sign;
        zero points [N, G] of weight's dtype, whole numbers from 1 to `settings.top`, symmetric ones the
        middle.
    """
    n, k = weight.shape
    size = settings.columns(k)
    root = importance.to(weight.dtype).clamp(min=0).sqrt().reshape(-1, size)  # [G, g]
    root = root / root.amax().clamp(min=torch.finfo(weight.dtype).tiny)
    scales = weight.new_empty(n, k // size)
    zeros = weight.new_empty(n, k // size)

    def search(rows: slice) -> None:
        groups = weight[rows].reshape(-1, k // size, size)
        scales[rows], zeros[rows] = _search(groups, root, settings)

    _by_chunks(search, weight)
    return scales, zeros


def _by_chunks(work: Callable[[slice], None], weight: torch.Tensor) -> None:
    """Do the work for a few rows at a time, all of them independent of each other."""
    n, k = weight.shape
    elements = CHUNK_ELEMENTS if weight.device.type == "cpu" else DEVICE_CHUNK_ELEMENTS
    step = max(1, elements // k)
    for start in range(0, n, step):
        work(slice(start, min(start + step, n)))


def _search(
    groups: torch.Tensor, root: torch.Tensor, settings: GridSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """groups: [n, G, g]; root: [G, g]."""
    buffer = torch.empty_like(groups)
    best_error = groups.new_full(groups.shape[:2], torch.inf)
    best_scale = groups.new_ones(groups.shape[:2])
    best_zero = groups.new_full(groups.shape[:2], float(settings.middle))
    for scale, zero in candidates(groups, settings):
        snap(groups, scale, zero, settings, out=buffer).sub_(groups).mul_(root)
        error = torch.linalg.vector_norm(buffer, dim=-1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_zero = torch.where(better, zero, best_zero)
    return best_scale, best_zero


def snap(
    groups: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    settings: GridSettings,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Move weights to the nearest points of their grid.

    Args:
        groups: [..., g].
        scale: [...].
        zero: [...]; of symmetric grids it is not looked at.
        settings: of the grid.
        out: of the groups' shape, for the result.

    Returns:
        [..., g]: weights still, not integers.
    """
    steps = torch.div(groups, scale[..., None], out=out).round_()
    if settings.symmetric:
        steps.clamp_(-settings.middle, settings.top - settings.middle)
    else:  # `clamp` with tensors on both sides computes one number after the other: six times slower
        torch.maximum(steps, -zero[..., None], out=steps)
        torch.minimum(steps, settings.top - zero[..., None], out=steps)
    return steps.mul_(scale[..., None])


def candidates(groups: torch.Tensor, settings: GridSettings) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The grids to try for groups [n, G, g]: scales and zero points, [n, G] each; the full range first."""
    return _symmetric(groups, settings) if settings.symmetric else _asymmetric(groups, settings)


def _symmetric(groups: torch.Tensor, settings: GridSettings) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    low, high = groups.amin(-1), groups.amax(-1)  # [n, G]
    reach = torch.maximum(-low, high) / (settings.middle - 0.5)
    zero = torch.full_like(reach, float(settings.middle))
    sign = torch.ones_like(reach)
    if settings.signed:
        sign[high > -low] = -1
    for ratio in settings.ratios():
        scale = reach * ratio
        if settings.scale_bits < FLOAT16_BITS:
            scale = round_significant(scale, settings.scale_bits)
        yield _stored(scale) * sign, zero


def _asymmetric(groups: torch.Tensor, settings: GridSettings) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    low = groups.amin(-1).clamp(max=0)  # [n, G]
    high = groups.amax(-1).clamp(min=0)
    for ratio in settings.ratios():
        scale = _stored(round_significant((high - low) * (ratio / settings.top), SIGNIFICANT_BITS))
        # From 1: AutoGPTQ's first format stores the zero point less one, and 0 would spoil its neighbours.
        zero = (-low * ratio / scale).round().clamp(1, settings.top)
        yield scale, zero


def as_stored(scales: torch.Tensor, settings: GridSettings) -> torch.Tensor:
    """Scales of either sign, rounded to the digits that are stored; 0 where that is nothing."""
    bits = settings.scale_bits if settings.symmetric else SIGNIFICANT_BITS
    if bits < FLOAT16_BITS:
        scales = round_significant(scales, bits)
    return scales.clamp(-LARGEST, LARGEST).half().to(scales.dtype)


def _stored(scale: torch.Tensor) -> torch.Tensor:
    """As float16 holds it; 1 where that is nothing, because then all the group's weights are."""
    rounded = scale.clamp(max=LARGEST).half().to(scale.dtype)
    return torch.where(rounded > 0, rounded, torch.ones_like(rounded))


def round_significant(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to so many significant binary digits."""
    mantissa, exponent = torch.frexp(values)  # mantissa in [0.5, 1)
    return torch.ldexp((mantissa * (1 << bits)).round(), exponent - bits)


def round_to_grid(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, settings: GridSettings
) -> torch.Tensor:
    """The nearest integers: uint8 [N, K] of weight [N, K], scales and zeros [N, G]."""
    n, k = weight.shape
    size = settings.columns(k)
    integers = torch.empty(n, k, dtype=torch.uint8, device=weight.device)

    def fill(rows: slice) -> None:
        steps = (weight[rows].reshape(-1, k // size, size) / scales[rows, :, None]).round_()
        steps.add_(zeros[rows, :, None]).clamp_(0, settings.top)
        integers[rows] = steps.to(torch.uint8).reshape(-1, k)

    _by_chunks(fill, weight)
    return integers
