"""What every method of rounding gives back."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from models.quantized_matrix import QuantizedMatrix
from quantize.methods.grid import GridSettings


@dataclass(frozen=True, slots=True)
class Solved:
    """A quantized matrix, and how well it went."""

    matrix: QuantizedMatrix
    loss: npt.NDArray[np.float64]
    """[N]: the mean square error of each output over the calibration inputs; NaN: unknown."""
    note: str = ""
    """What went otherwise than planned: for the receipt."""

    def rows(self, start: int, stop: int) -> Self:
        """Some of the rows."""
        return replace(self, matrix=self.matrix.rows(start, stop), loss=self.loss[start:stop])

    def dense(self, like: torch.Tensor) -> torch.Tensor:
        """The weights as they now are, [N, K], of the type and on the device of `like`."""
        return torch.from_numpy(self.matrix.dense()).to(like.device, like.dtype)


def matrix_of(
    integers: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    grid: GridSettings,
    groups: torch.Tensor | None = None,
) -> QuantizedMatrix:
    """Tensors as a record of arrays. Scales are float16 values: nothing is rounded here."""
    return QuantizedMatrix(
        bits=grid.bits,
        integers=integers.cpu().numpy(),
        scales=scales.half().contiguous().cpu().numpy(),
        zeros=zeros.to(torch.uint8).contiguous().cpu().numpy(),
        group_size=grid.columns(integers.shape[1]),
        groups=None if groups is None else groups.cpu().numpy(),
    )
