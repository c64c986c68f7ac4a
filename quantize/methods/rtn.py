"""Rounding to the nearest: the baseline of every comparison."""

import torch

from quantize.methods.grid import GridSettings, round_to_grid, search_grid
from quantize.methods.hessian import output_error
from quantize.methods.ranges import search_ranges
from quantize.methods.solved import Solved, matrix_of


def quantize_matrix(
    weight: torch.Tensor,
    settings: GridSettings,
    hessian: torch.Tensor | None = None,
    *,
    whole: bool = False,
) -> Solved:
    """Round each weight to the nearest point of its group's grid.

    Args:
        weight: [N, K], of any float type.
        settings: K is a multiple of its group size.
        hessian: [K, K]; where given, its diagonal weighs the search and the error is told.
        whole: all of it weighs the search, which takes longer.

    Raises:
        ValueError: weights that are not finite, or groups that don't divide.
    """
    weight = weight.float()
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("the weights hold NaN or infinity")
    if whole and hessian is not None:
        scales, zeros = search_ranges(weight, hessian.float(), settings)
    else:
        importance = weight.new_ones(weight.shape[1]) if hessian is None else hessian.diagonal()
        scales, zeros = search_grid(weight, importance, settings)
    integers = round_to_grid(weight, scales, zeros, settings)
    matrix = matrix_of(integers, scales, zeros, settings)
    loss = torch.full((len(weight),), torch.nan, dtype=torch.float64)
    if hessian is not None:
        difference = torch.from_numpy(matrix.dense()).to(weight.device) - weight
        loss = output_error(difference, hessian.float()).double().cpu()
    return Solved(matrix, loss.numpy())
