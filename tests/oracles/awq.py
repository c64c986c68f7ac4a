"""AWQ's search as the paper has it: the model is run for each exponent, in float64. numpy only."""

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def significant(value: float, bits: int) -> float:
    """Rounded to so many significant binary digits, ties to even, and then to float16."""
    if value == 0:
        return 0.0
    exponent = int(np.floor(np.log2(value))) + 1
    return float(np.float16(np.rint(value * 2.0 ** (bits - exponent)) * 2.0 ** (exponent - bits)))


def rounded(weight: Doubles, bits: int, group_size: int) -> Doubles:
    """Each group to its full range's asymmetric grid: scales of seven digits, zero points from 1."""
    top = 2**bits - 1
    result = np.empty_like(weight)
    for n in range(weight.shape[0]):
        for start in range(0, weight.shape[1], group_size):
            group = weight[n, start : start + group_size]
            low, high = min(group.min(), 0.0), max(group.max(), 0.0)
            scale = significant((high - low) / top, 7) or 1.0
            zero = min(max(np.rint(-low / scale), 1), top)
            q = np.clip(np.rint(group / scale) + zero, 0, top)
            result[n, start : start + group_size] = scale * (q - zero)
    return result


def output_errors(
    weight: Doubles, inputs: Doubles, candidates: list[Doubles], bits: int, group_size: int
) -> list[float]:
    """For each vector of scales: the mean square error of the outputs, summed over them.

    Args:
        weight: [N, K].
        inputs: [T, K].
        candidates: [K] each.
        bits: of an integer.
        group_size: of columns.
    """
    wanted = inputs @ weight.T
    errors = []
    for scales in candidates:
        got = (inputs / scales) @ rounded(weight * scales, bits, group_size).T
        errors.append(float(((got - wanted) ** 2).mean(0).sum()))
    return errors


def best_ranges(
    row: Doubles, hessian: Doubles, candidates: list[list[Doubles]], sweeps: int
) -> tuple[list[int], list[float]]:
    """Which candidate each group of a row takes, one group after the other by the whole error D H D^T.

    Args:
        row: [K].
        hessian: [K, K].
        candidates: of each group, what its weights become.
        sweeps: times that all groups are gone through, after each has taken the best by itself.

    Returns:
        The numbers of the candidates, and the error after the beginning and after each sweep.
    """

    def error(chosen: list[int | None]) -> float:
        change = np.zeros_like(row)
        size = len(row) // len(chosen)
        for group, number in enumerate(chosen):
            if number is not None:
                part = slice(group * size, (group + 1) * size)
                change[part] = candidates[group][number] - row[part]
        return float(change @ hessian @ change)

    def best(chosen: list[int | None], group: int) -> int:
        errors = [
            error([*chosen[:group], number, *chosen[group + 1 :]]) for number in range(len(candidates[group]))
        ]
        return int(np.argmin(errors))

    nobody: list[int | None] = [None] * len(candidates)
    chosen: list[int | None] = [best(nobody, group) for group in range(len(candidates))]
    errors = [error(chosen)]
    for _ in range(sweeps):
        for group in range(len(candidates)):
            chosen[group] = best(chosen, group)
        errors.append(error(chosen))
    return [number for number in chosen if number is not None], errors
