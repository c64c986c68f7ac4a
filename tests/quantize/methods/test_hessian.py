"""The mean of x x^T, in pieces."""

import pytest
import torch

from quantize.methods.hessian import Hessian, divided, output_error

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("columns", [5, 128, 300, 1100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_over_batches(columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(70, columns, generator=generator)
    hessian = Hessian(columns, dtype=dtype, magnitudes=True)
    hessian.add(x[:10].reshape(2, 5, columns))
    hessian.add(x[10:10])
    hessian.add(x[10:])
    expected = x.double().T @ x.double() / 70
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(hessian.matrix().double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(hessian.matrix(), hessian.matrix().T, rtol=0, atol=0)
    torch.testing.assert_close(hessian.mean_magnitude, x.abs().mean(0))
    assert hessian.count == 70


def test_some_inputs_count_more_than_others() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 20, 300, generator=generator)
    costs = torch.rand(3, 20, generator=generator)
    hessian = Hessian(300, magnitudes=True)
    hessian.add(x[:1], costs[:1])
    hessian.add(x[1:], costs[1:])
    rows = x.double().flatten(0, 1)
    expected = (rows * costs.double().reshape(-1, 1)).T @ rows / 60
    torch.testing.assert_close(hessian.matrix().double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hessian.mean_magnitude, x.abs().flatten(0, 1).mean(0))


@pytest.mark.parametrize("columns", [16, 128, 300, 1100])
def test_output_error_is_that_of_running_it(columns: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, columns, generator=generator, dtype=torch.float64)
    change = torch.randn(7, columns, generator=generator, dtype=torch.float64)
    expected = (x @ change.T).square().mean(0)
    torch.testing.assert_close(output_error(change, x.T @ x / 50), expected)


def test_the_hessian_of_divided_inputs() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(50, 16, generator=generator, dtype=torch.float64)
    scales = torch.rand(16, generator=generator, dtype=torch.float64) + 0.5
    y = x / scales
    torch.testing.assert_close(divided(x.T @ x / 50, scales), y.T @ y / 50)
