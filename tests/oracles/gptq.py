"""GPTQ as the paper writes it: one column at a time, in float64, with the inverse Hessian's Cholesky factor.

Frantar et al. 2022, algorithm 1, without its blocks; numpy only, nothing shared with the code under test.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


@dataclass
class Rounded:
    """What came out, and how close each rounding was to a tie."""

    integers: npt.NDArray[np.int64]
    """[N, K]."""
    ties: Doubles
    """[N, K]: distance of each quotient from the nearest half, in steps."""
    order: npt.NDArray[np.int64]
    """The columns as they were rounded."""


def gptq(
    weight: Doubles,
    hessian: Doubles,
    scales: Doubles,
    zeros: Doubles,
    *,
    bits: int,
    groups: npt.NDArray[np.int64],
    by_importance: bool,
    damping: float,
    own_damping: bool = False,
) -> Rounded:
    """Round with given scales.

    Args:
        weight: [N, K].
        hessian: [K, K].
        scales: [N, G].
        zeros: [N, G].
        bits: of an integer.
        groups: [K], of each column.
        by_importance: columns with the largest diagonal first.
        damping: of the mean diagonal.
        own_damping: of each column's own and of the median (the lower of two) of the live instead.
    """
    w = weight.copy()
    h = hessian.copy()
    for k in range(len(h)):
        if h[k, k] == 0:
            h[k, k] = 1
            w[:, k] = 0
    order = np.argsort(-np.diag(hessian), kind="stable") if by_importance else np.arange(len(h))
    w = w[:, order]
    h = h[np.ix_(order, order)]
    diagonal = np.diag(h)
    live = np.sort(np.diag(hessian)[np.diag(hessian) != 0])
    median = live[(len(live) - 1) // 2]
    h = h + damping * np.diag(diagonal + median if own_damping else np.full(len(h), np.mean(diagonal)))
    inverse = np.linalg.inv(h)
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
    integers = np.zeros(w.shape, np.int64)
    ties = np.zeros(w.shape)
    for k in range(len(h)):
        scale, zero = scales[:, groups[order[k]]], zeros[:, groups[order[k]]]
        quotient = w[:, k] / scale
        ties[:, k] = np.abs(quotient - np.floor(quotient) - 0.5)
        q = np.clip(np.rint(quotient) + zero, 0, 2**bits - 1)
        integers[:, k] = q
        error = (w[:, k] - scale * (q - zero)) / upper[k, k]
        w[:, k:] -= error[:, None] * upper[k, k:]
    result, tied = np.zeros_like(integers), np.zeros_like(ties)
    result[:, order], tied[:, order] = integers, ties
    return Rounded(result, tied, order)


def best_grid(
    group: Doubles, importance: Doubles, candidates: list[tuple[float, int]], bits: int
) -> tuple[float, int]:
    """Of several (scale, zero point), the one with the least weighted square error, one group at a time."""
    best, least = candidates[0], np.inf
    for scale, zero in candidates:
        total = 0.0
        for value, weight in zip(group, importance, strict=True):
            q = min(max(int(np.rint(value / scale)) + zero, 0), 2**bits - 1)
            total += weight * (scale * (q - zero) - value) ** 2
        if total < least:
            best, least = (scale, zero), total
    return best
