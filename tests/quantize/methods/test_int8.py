"""Eight bits, and SmoothQuant's scales."""

import numpy as np
import pytest
import torch

from models.linear import Linear
from quantize.methods.hessian import output_error
from quantize.methods.int8 import RoundedInputs, quantize_matrix, round_tokens, smoothing

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


def test_smoothing_by_hand() -> None:
    weights = [torch.tensor([[1.0, -4.0, 0.0, 2.0]]), torch.tensor([[0.5, 1.0, 0.0, -1.0]])]
    largest = torch.tensor([16.0, 1.0, 3.0, 0.0])
    # sqrt(16 / 1), sqrt(1 / 4); nothing reads the third, and the fourth is never anything.
    assert smoothing(weights, largest).tolist() == [4.0, 0.5, 1.0, 1.0]
    assert smoothing(weights, largest, strength=1.0).tolist() == [16.0, 1.0, 1.0, 1.0]
    assert smoothing(weights, largest, strength=0.0).tolist() == [1.0, 0.25, 1.0, 1.0]


def test_smoothing_helps_rounded_activations() -> None:
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(32, 64, generator=generator), torch.randn(200, 64, generator=generator)
    x[:, 7] *= 60

    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax(1, keepdim=True) / 127
        return (x / step).round() * step @ quantize_matrix(weight).dense(weight).T

    wanted = x @ weight.T
    scales = smoothing([weight], x.abs().amax(0))
    assert (run(x / scales, weight * scales) - wanted).norm() < 0.5 * (run(x, weight) - wanted).norm()


def test_activations_are_rounded_token_by_token() -> None:
    x = torch.tensor([[[127.0, -3.4, 0.6], [0.0, 0.0, 0.0]], [[-0.0254, 0.0101, 0.0001], [63.5, 0.2, 0.3]]])
    expected = torch.tensor(
        [[[127.0, -3.0, 1.0], [0.0, 0.0, 0.0]], [[-0.0254, 0.0100, 0.0], [63.5, 0.0, 0.5]]]
    )
    torch.testing.assert_close(round_tokens(x), expected)
    weight = torch.tensor([[1.0, 10.0, 100.0]])
    seen = RoundedInputs(Linear(weight, torch.tensor([1.0])))(x)
    torch.testing.assert_close(seen, expected @ weight.T + 1)
