"""Eight-bit integers with one scale for each output: W8A16, and W8A8 whose activations are rounded by token
while the model runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from models.int8_matrix import Int8Matrix
from models.linear import Projection
from quantize.methods import gptq
from quantize.methods.grid import BFLOAT16_BITS, FLOAT16_BITS, GridSettings
from quantize.methods.hessian import output_error
from quantize.methods.solved import Solved

TOP = 127
"""Integers that are rounded to the nearest go from -127 to 127."""

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SCALE_BITS = {"F32": FLOAT16_BITS, "F16": FLOAT16_BITS, "BF16": BFLOAT16_BITS}
LEAST_EXPONENT = -100
"""Of a row's largest weight: a smaller one is not brought to size."""


@dataclass(frozen=True, slots=True)
class Int8Solved:
    """A matrix in eight bits, and how well it went."""

    matrix: Int8Matrix
    loss: npt.NDArray[np.float64]
    """[N]: the mean square error of each output over the calibration inputs; NaN: unknown."""
    note: str = ""
    """What went otherwise than planned: for the receipt."""

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


def solve_matrices(
    weights: Sequence[torch.Tensor],
    hessian: torch.Tensor,
    noise: torch.Tensor | None = None,
    *,
    scale_dtype: str = "BF16",
) -> list[Int8Solved]:
    """Round matrices that see the same inputs by GPTQ, on scales that are searched, from -128 to 127.

    Args:
        weights: [N_i, K] each, of any float type.
        hessian: [K, K], of the inputs x before they are rounded.
        noise: [K]: the mean square error that rounding makes in each input; None: inputs are not rounded.
        scale_dtype: what scales are stored in, as safetensors calls it.

    Returns:
        One for each; its loss counts what the noise does, too.

    Raises:
        ValueError: weights that are not finite, or shapes that don't fit.
    """
    noisy = hessian if noise is None else hessian + torch.diag(noise.to(hessian.dtype))
    # Noise damps each column by itself; where there is none, a share of its own diagonal does.
    own_damping = noise is None
    sizes = [_to_size(weight, scale_dtype) for weight in weights]
    grid = GridSettings(8, -1, signed=False, scale_bits=SCALE_BITS[scale_dtype])
    solved = gptq.quantize_matrices(
        [weight * size for weight, size in zip(weights, sizes, strict=True)],
        noisy,
        gptq.GPTQSettings(grid, own_damping=own_damping),
    )
    found = [_stored(one, size) for one, size in zip(solved, sizes, strict=True)]
    if noise is None:
        return found
    return [
        Int8Solved(one.matrix, _noisy_loss(one.dense(weight), weight, hessian, noise), one.note)
        for one, weight in zip(found, weights, strict=True)
    ]


def _noisy_loss(
    found: torch.Tensor, weight: torch.Tensor, hessian: torch.Tensor, noise: torch.Tensor
) -> npt.NDArray[np.float64]:
    """Of the weights' error on the inputs, and of the inputs' on the weights, [N]."""
    now = found.to(hessian.dtype)
    loss = output_error(now - weight.to(hessian.dtype), hessian) + now.square() @ noise.to(hessian.dtype)
    values: npt.NDArray[np.float64] = loss.double().cpu().numpy()
    return values


def _to_size(weight: torch.Tensor, scale_dtype: str) -> torch.Tensor:
    """Powers of two that bring each row's largest weight to 64 or more and under 128, [N, 1]: scales are
    searched among float16's values, and so small a number as a scale has few digits there. A scale that is
    stored in float16 has no more digits than that."""
    largest = weight.float().abs().amax(1, keepdim=True)
    if scale_dtype == "F16":
        return torch.ones_like(largest)
    exponent = np.maximum(np.frexp(largest.cpu().numpy())[1], LEAST_EXPONENT)
    return torch.from_numpy(np.ldexp(np.float32(1), 7 - exponent)).to(largest.device)  # exactly


def _stored(solved: Solved, size: torch.Tensor) -> Int8Solved:
    """Integers without the zero point, and scales of the weights as they were before `_to_size`."""
    factors = size.cpu().numpy()
    integers = (solved.matrix.integers ^ np.uint8(0x80)).view(np.int8)
    scales = solved.matrix.scales.astype(np.float32) / factors
    loss = solved.loss / np.square(factors[:, 0].astype(np.float64))
    return Int8Solved(Int8Matrix(integers, scales), loss, solved.note)


def round_tokens(x: torch.Tensor) -> torch.Tensor:
    """Activations [..., K] as W8A8's kernels see them: each token rounded to 255 steps of its own."""
    steps = (x.abs().amax(-1, keepdim=True) / TOP).clamp_(min=torch.finfo(x.dtype).tiny)
    return (x / steps).round_().mul_(steps)


def rounding_noise(x: torch.Tensor) -> torch.Tensor:
    """What rounding tokens [T, K] does to each input: the mean square of the error, [K]."""
    return (round_tokens(x) - x).square_().mean(0)


class RoundedInputs:
    """A matrix whose inputs are rounded first."""

    def __init__(self, matrix: Projection) -> None:
        self.matrix = matrix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return self.matrix(round_tokens(x))
