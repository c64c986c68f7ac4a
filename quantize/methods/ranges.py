"""The range of each group, when weights are rounded to the nearest: searched by what it does to the outputs.

AWQ's own code clips each group by itself, as if the others were exact. A change D of a row of weights makes
the mean square error D H D^T, to which groups add by themselves and in pairs: so each group's range is first
the best by itself, and then, group after group, the best beside those that the others now have. No step makes
the error larger. On SmolLM2's layers it ends up a fifth smaller than with the Hessian's diagonal alone.
"""

import torch

from quantize.methods.grid import GridSettings, candidates, snap

SWEEPS = 2
"""Times that all groups are gone through: a third finds next to nothing."""
CHUNK_ELEMENTS = 2**19
"""Weights whose candidates are in memory at once: 24 MiB for twelve."""


def search_ranges(
    weight: torch.Tensor, hessian: torch.Tensor, settings: GridSettings, sweeps: int = SWEEPS
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best grid of each group.

    Args:
        weight: float [N, K].
        hessian: [K, K], of the same type.
        settings: K is a multiple of its group size.
        sweeps: 0 leaves each group with the best by itself.

    Returns:
        scales and zero points as `search_grid` gives them, [N, G] each.
    """
    n, k = weight.shape
    size = settings.columns(k)
    blocks = torch.stack([hessian[at : at + size, at : at + size] for at in range(0, k, size)])  # [G, g, g]
    scales, zeros = weight.new_empty(n, k // size), weight.new_empty(n, k // size)
    step = max(1, CHUNK_ELEMENTS // k)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        scales[rows], zeros[rows] = _search(weight[rows], hessian, blocks, settings, sweeps)
    return scales, zeros


def _search(
    weight: torch.Tensor, hessian: torch.Tensor, blocks: torch.Tensor, settings: GridSettings, sweeps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    n, k = weight.shape
    count, size = blocks.shape[:2]
    rows = weight.reshape(n, count, size)
    groups = rows.transpose(0, 1)  # [G, n, g]
    scales, zeros = (
        torch.stack(list(one)).transpose(1, 2).contiguous()  # [C, G, n]
        for one in zip(*candidates(rows, settings), strict=True)
    )
    changes = weight.new_empty(len(scales), count, n, size)  # [C, G, n, g]
    alone = weight.new_empty(len(scales), count, n)  # each change's error, the others exact
    for number, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
        change = snap(groups, scale, zero, settings, out=changes[number]).sub_(groups)
        alone[number] = torch.linalg.vecdot(change @ blocks, change)
    chosen = _least(alone)  # [G, n]
    here = torch.arange(n, device=weight.device)
    if sweeps:
        each = torch.arange(count, device=weight.device)[:, None]
        now = changes[chosen, each, here].transpose(0, 1).reshape(n, k)
    for _ in range(sweeps):
        before = chosen.clone()
        for group in range(count):
            columns = slice(group * size, (group + 1) * size)
            own = now[:, columns] @ blocks[group]
            others = torch.addmm(own, now, hessian[:, columns], beta=-1)  # [n, g]
            error = alone[:, group] + 2 * torch.linalg.vecdot(changes[:, group], others)  # [C, n]
            chosen[group] = _least(error)
            now[:, columns] = changes[chosen[group], group, here]
        if torch.equal(before, chosen):
            break
    picked = chosen[None]  # [1, G, n]
    return scales.gather(0, picked)[0].t(), zeros.gather(0, picked)[0].t()


def _least(errors: torch.Tensor) -> torch.Tensor:
    """The candidate of each that is best: int64 [...] of [C, ...]."""
    return errors.min(0).indices  # `argmin` is twelve times slower along the first dimension
