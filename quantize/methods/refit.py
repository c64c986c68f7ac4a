"""The best scales for integers that are there already.

Rounding to the nearest and GPTQ both choose scales first and integers for them. Given the integers, the
scales with the least error of the outputs are a least-squares problem with as many unknowns as a row has
groups: with Q_g the integers of a group less their zero point, as a row that is 0 elsewhere, and w the row,

    sum_h (Q_g H Q_h^T) s_h = Q_g H w^T        for all groups g.

A row whose error that does not lower, once the scales are rounded as they are stored, keeps its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

AT_ONCE = 2**22
"""Elements of the integers, and of the systems of equations, that are looked at at once."""
FAR = 2.0
"""A scale that would change by more than this factor is not trusted."""


def refit(
    weight: torch.Tensor,
    steps: torch.Tensor,
    scales: torch.Tensor,
    groups: torch.Tensor,
    hessian: torch.Tensor,
    *,
    damping: torch.Tensor | float,
    store: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales that fit the integers better.

    Args:
        weight: float [N, K], what was rounded.
        steps: [N, K], integers less zero points, of weight's dtype.
        scales: [N, G], as they are; not 0.
        groups: int64 [K], the group of each column, 0 to G - 1.
        hessian: [K, K] of weight's dtype.
        damping: added to the Hessian's diagonal, [K] or one for all.
        store: rounds scales as they are stored.

    Returns:
        Scales [N, G], and by how much each row's error e H e^T has fallen, [N], never negative.
    """
    n, k = weight.shape
    columns = [(groups == g).nonzero()[:, 0] for g in range(scales.shape[1])]
    added = torch.as_tensor(damping, dtype=weight.dtype, device=weight.device).expand(k)
    fit = _Fit(groups, columns, hessian, added, store)
    step = max(1, AT_ONCE // max(k, len(columns) ** 2))
    parts = [
        fit(*(one[start : start + step] for one in (weight, steps, scales))) for start in range(0, n, step)
    ]
    return torch.cat([found for found, _ in parts]), torch.cat([gained for _, gained in parts])


@dataclass(frozen=True, slots=True)
class _Fit:
    """What all rows have in common."""

    groups: torch.Tensor
    columns: list[torch.Tensor]
    """Of each group."""
    hessian: torch.Tensor
    damping: torch.Tensor
    """[K]."""
    store: Callable[[torch.Tensor], torch.Tensor]

    def __call__(
        self, weight: torch.Tensor, steps: torch.Tensor, scales: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Solved for is the change of the scales, which is small."""
        n, n_groups = scales.shape
        error = weight - steps * scales[:, self.groups]
        of_error = error @ self.hessian
        normal = weight.new_zeros(n, n_groups, n_groups)
        right = weight.new_empty(n, n_groups)
        damped = weight.new_empty(n, n_groups)
        damped_right = weight.new_empty(n, n_groups)
        for g, own in enumerate(self.columns):
            part = steps[:, own]
            normal[:, g].index_add_(1, self.groups, (part @ self.hessian[own]).mul_(steps))
            right[:, g] = (part * of_error[:, own]).sum(1)
            damped[:, g] = part.square() @ self.damping[own]
            damped_right[:, g] = (part * error[:, own]) @ self.damping[own]
        # A group of nothing but zeros keeps its scale. Cholesky, also because torch's batched LU gave wrong
        # pivots for 152 groups, with MKL on two threads.
        damped += (normal.diagonal(dim1=1, dim2=2) + damped == 0).to(damped.dtype)
        factor, failed = torch.linalg.cholesky_ex(normal + torch.diag_embed(damped))
        solution = torch.cholesky_solve((right + damped_right)[..., None], factor)[..., 0]
        wanted = self.store(scales + solution)
        ratio = wanted / scales
        wanted = torch.where((ratio > 1 / FAR) & (ratio < FAR), wanted, scales)  # nor where it is NaN
        change = wanted - scales
        gained = 2 * (change * right).sum(1) - torch.einsum("ng,ngh,nh->n", change, normal, change)
        better = (gained > 0) & (failed == 0)
        return torch.where(better[:, None], wanted, scales), torch.where(better, gained, 0)
