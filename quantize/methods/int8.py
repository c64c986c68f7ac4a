"""Eight-bit integers with one scale for each output: W8A16, and W8A8 whose activations are rounded by token
while the model runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from models.int8_matrix import Int8Matrix
from models.linear import Projection
from quantize.methods.hessian import output_error

TOP = 127
"""Integers go from -127 to 127."""

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Int8Solved:
    """A matrix in eight bits, and how well it went."""

    matrix: Int8Matrix
    loss: npt.NDArray[np.float64]
    """[N]: the mean square error of each output over the calibration inputs; NaN: unknown."""

    def dense(self, like: torch.Tensor) -> torch.Tensor:
        """The weights as they now are, [N, K], of the type and on the device of `like`."""
        return torch.from_numpy(self.matrix.dense()).to(like.device, like.dtype)


def quantize_matrix(
    weight: torch.Tensor, *, scale_dtype: str = "BF16", hessian: torch.Tensor | None = None
) -> Int8Solved:
    """Round each weight to the nearest multiple of its row's scale.

    Args:
        weight: [N, K], of any float type.
        scale_dtype: what scales are stored in, as safetensors calls it: the integers are those of the
            rounded scale.
        hessian: [K, K]; where given, the error is told.

    Raises:
        ValueError: weights that are not finite.
    """
    weight = weight.float()
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("the weights hold NaN or infinity")
    scales = (weight.abs().amax(1, keepdim=True) / TOP).to(DTYPES[scale_dtype]).float()
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))  # a row of nothing
    integers = (weight / scales).round_().clamp_(-TOP, TOP).to(torch.int8)
    matrix = Int8Matrix(integers.cpu().numpy(), scales.cpu().numpy())
    loss = torch.full((len(weight),), torch.nan, dtype=torch.float64)
    if hessian is not None:
        loss = output_error(integers * scales - weight, hessian.float()).double().cpu()
    return Int8Solved(matrix, loss.numpy())


def smoothing(weights: Sequence[torch.Tensor], largest: torch.Tensor, strength: float = 0.5) -> torch.Tensor:
    """SmoothQuant's scales (Xiao et al. 2023, equation 4): how far outliers go over from inputs to weights.

    Args:
        weights: all that see the input, [N_i, K].
        largest: maximum of |x| of each input, [K].
        strength: 0 leaves all to the inputs, 1 gives all to the weights.

    Returns:
        [K]: what the inputs are divided by and the weights' columns multiplied with.
    """
    columns = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).float()
    scales = largest.float().pow(strength) / columns.clamp(min=1e-5).pow(1 - strength)
    # An input that is always 0, or that nothing looks at, stays as it is.
    usable = (largest > 0) & (columns > 0) & torch.isfinite(scales) & (scales > 0)
    return torch.where(usable, scales.clamp(1e-5, 1e5), torch.ones_like(scales))


def round_tokens(x: torch.Tensor) -> torch.Tensor:
    """Activations [..., K] as W8A8's kernels see them: each token rounded to 255 steps of its own."""
    steps = (x.abs().amax(-1, keepdim=True) / TOP).clamp_(min=torch.finfo(x.dtype).tiny)
    return (x / steps).round_().mul_(steps)


class RoundedInputs:
    """A matrix whose inputs are rounded first."""

    def __init__(self, matrix: Projection) -> None:
        self.matrix = matrix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return self.matrix(round_tokens(x))
