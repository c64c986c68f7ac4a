"""Eight bits: rounded to the nearest, and solved, by GPTQ in float64."""

import numpy as np
import pytest
import torch

from models.linear import Linear
from quantize.methods.hessian import output_error
from quantize.methods.int8 import (
    RoundedInputs,
    quantize_matrix,
    round_tokens,
    rounding_noise,
    solve_matrices,
)
from tests.oracles.gptq import gptq

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_nearest_multiples_of_stored_scales(dtype: str) -> None:
    weight = torch.randn(12, 40, generator=torch.Generator().manual_seed(1)) * 0.1
    weight[3] = 0
    solved = quantize_matrix(weight, scale_dtype=dtype)
    scales = torch.from_numpy(solved.matrix.scales)
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    assert torch.equal(scales.to(kind).float(), scales)
    for n in range(12):
        scale = float(scales[n, 0])
        expected = [max(-127, min(127, round(float(value) / scale))) for value in weight[n]]
        assert solved.matrix.integers[n].tolist() == expected
    largest = weight.abs().amax(1)
    largest[3] = 127  # a row of nothing has a scale of 1
    torch.testing.assert_close(scales[:, 0], largest / 127, rtol=0.004, atol=0)
    assert np.isnan(solved.loss).all()
    assert (solved.dense(weight)[3] == 0).all()


def test_tells_the_error() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, x = torch.randn(6, 16, generator=generator), torch.randn(99, 16, generator=generator)
    hessian = x.T @ x / 99
    solved = quantize_matrix(weight, hessian=hessian)
    expected = output_error(solved.dense(weight) - weight, hessian)
    np.testing.assert_allclose(solved.loss, expected.numpy(), rtol=1e-4)
    with pytest.raises(ValueError, match="NaN"):
        quantize_matrix(weight * torch.nan)


def layer(n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and inputs [600, K] that depend on each other and differ in size; both float64."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(k, k, generator=generator) / k**0.5
    x = torch.randn(600, k, generator=generator) @ mix + torch.randn(600, k, generator=generator) / 4
    x = x * torch.exp(torch.randn(k, generator=generator))
    return torch.randn(n, k, generator=generator).double() * 0.01, x.double()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("noisy", [False, True])
def test_solved_as_the_paper_says(dtype: str, noisy: bool) -> None:
    """The integers of GPTQ's algorithm in float64 with the scales that are stored, to the integer. Where
    inputs are rounded, their errors' squares add to their own."""
    weight, x = layer(20, 160)
    weight[3] *= 1e-4  # rows may be of any size
    weight[7] = 0
    hessian = x.T @ x / len(x)
    noise = 10 ** torch.linspace(-5, -2, 160).double() * hessian.diagonal().mean() if noisy else None
    [solved] = solve_matrices([weight], hessian, noise, scale_dtype=dtype)
    matrix = solved.matrix
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    scales = torch.from_numpy(matrix.scales)
    assert torch.equal(scales.to(kind).float(), scales)
    wanted, seen = weight.numpy(), hessian.numpy()
    if noise is not None:
        seen = seen + np.diag(noise.numpy())
    expected = gptq(
        wanted,
        seen,
        matrix.scales.astype(np.float64),
        np.full((20, 1), 128.0),
        bits=8,
        groups=np.zeros(160, np.int64),
        by_importance=True,
        damping=0.01,
        own_damping=not noisy,
    )
    rows = [n for n in range(20) if n != 3 or dtype != "F16"]
    np.testing.assert_array_equal(matrix.integers[rows], expected.integers[rows] - 128)
    assert (matrix.integers[7] == 0).all()
    assert solved.note == ""
    change = solved.dense(weight).numpy() - weight.numpy()
    error = np.einsum("nk,kl,nl->n", change, hessian.numpy(), change)
    if noise is not None:
        error += solved.dense(weight).numpy() ** 2 @ noise.numpy()
    np.testing.assert_allclose(solved.loss, error, rtol=1e-3, atol=1e-14)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_solving_beats_rounding(dtype: str) -> None:
    weight, x = layer(64, 256)
    weight, hessian = weight.float(), (x.T @ x / len(x)).float()
    nearest = quantize_matrix(weight, scale_dtype=dtype, hessian=hessian)
    found = solve_matrices([weight[:40], weight[40:]], hessian, scale_dtype=dtype)
    assert [one.matrix.shape for one in found] == [(40, 256), (24, 256)]
    assert sum(one.loss.sum() for one in found) < 0.5 * nearest.loss.sum()


def test_noise_is_what_rounding_leaves() -> None:
    x = torch.tensor([[127.0, -3.4, 0.6], [63.5, 0.2, 0.3]])  # [127, -3, 1] and [63.5, 0, 0.5]
    expected = [0.0, (0.4**2 + 0.2**2) / 2, (0.4**2 + 0.2**2) / 2]
    np.testing.assert_allclose(rounding_noise(x).numpy(), expected, rtol=1e-4)


def test_refuses_what_is_no_number_and_rounds_where_nothing_helps() -> None:
    weight, x = layer(8, 32)
    hessian = x.T @ x / len(x)
    with pytest.raises(ValueError, match="NaN"):
        solve_matrices([weight * torch.inf], hessian)
    hessian[3, 4] = hessian[4, 3] = 1e9  # as no sum of squares can be
    [solved] = solve_matrices([weight], hessian)
    assert "rounded to the nearest" in solved.note
    farthest = 0.05 + 1 / 127  # the narrowest range that is tried, and a step
    np.testing.assert_allclose(
        solved.matrix.dense(), weight.numpy(), rtol=0, atol=farthest * float(weight.abs().max())
    )


def test_activations_are_rounded_token_by_token() -> None:
    x = torch.tensor([[[127.0, -3.4, 0.6], [0.0, 0.0, 0.0]], [[-0.0254, 0.0101, 0.0001], [63.5, 0.2, 0.3]]])
    expected = torch.tensor(
        [[[127.0, -3.0, 1.0], [0.0, 0.0, 0.0]], [[-0.0254, 0.0100, 0.0], [63.5, 0.0, 0.5]]]
    )
    torch.testing.assert_close(round_tokens(x), expected)
    weight = torch.tensor([[1.0, 10.0, 100.0]])
    seen = RoundedInputs(Linear(weight, torch.tensor([1.0])))(x)
    torch.testing.assert_close(seen, expected @ weight.T + 1)
