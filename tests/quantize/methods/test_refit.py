"""Scales that are fitted to integers, against least squares in float64."""

import numpy as np
import pytest
import torch

from quantize.methods.gptq import GPTQSettings, Order, quantize_matrix
from quantize.methods.grid import GridSettings
from quantize.methods.refit import refit

pytestmark = pytest.mark.oracle

N, K, GROUP = 24, 128, 32


def problem(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and the Hessian of inputs that are correlated."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(N, K, generator=generator, dtype=torch.float64)
    mix = torch.randn(K, K, generator=generator, dtype=torch.float64) / K**0.5
    inputs = torch.randn(400, K, generator=generator, dtype=torch.float64) @ (mix + torch.eye(K))
    return weight, inputs.T @ inputs / 400


@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("scattered", [False, True])
def test_as_least_squares(damping: float, scattered: bool) -> None:
    """Each row's scales are the solution of its own least-squares problem, over H + damping I."""
    weight, hessian = problem(1)
    groups = torch.arange(K) // GROUP
    if scattered:
        groups = groups[torch.randperm(K, generator=torch.Generator().manual_seed(2))]
    scales = weight.abs().amax(1, keepdim=True).expand(N, K // GROUP) / 7
    steps = torch.round(weight / scales[:, groups]).clamp(-8, 7)
    found, gained = refit(weight, steps, scales, groups, hessian, damping=damping, store=lambda s: s)
    root = np.linalg.cholesky(hessian.numpy() + damping * np.eye(K))
    for row in range(N):
        parts = np.stack([(steps[row] * (groups == g)).numpy() @ root for g in range(K // GROUP)], 1)
        wanted = np.linalg.lstsq(parts, weight[row].numpy() @ root, rcond=None)[0]
        np.testing.assert_allclose(found[row].numpy(), wanted, rtol=1e-8)

    def error(scales: torch.Tensor) -> torch.Tensor:
        left = weight - steps * scales[:, groups]
        return ((left @ hessian) * left).sum(1)

    torch.testing.assert_close(gained, error(scales) - error(found), rtol=1e-6, atol=1e-9)
    assert bool((gained > 0).all())


def test_damping_of_each_column() -> None:
    """Over H + diag(damping)."""
    weight, hessian = problem(5)
    groups = torch.arange(K) // GROUP
    scales = weight.abs().amax(1, keepdim=True).expand(N, K // GROUP) / 7
    steps = torch.round(weight / scales[:, groups]).clamp(-8, 7)
    damping = torch.linspace(0.0, 2.0, K, dtype=torch.float64)
    found, _ = refit(weight, steps, scales, groups, hessian, damping=damping, store=lambda s: s)
    root = np.linalg.cholesky((hessian + torch.diag(damping)).numpy())
    for row in range(N):
        parts = np.stack([(steps[row] * (groups == g)).numpy() @ root for g in range(K // GROUP)], 1)
        wanted = np.linalg.lstsq(parts, weight[row].numpy() @ root, rcond=None)[0]
        np.testing.assert_allclose(found[row].numpy(), wanted, rtol=1e-8)


def test_what_is_stored_is_never_worse() -> None:
    """A rounding that takes back all that was gained leaves a row as it was."""
    weight, hessian = problem(3)
    groups = torch.arange(K) // GROUP
    scales = torch.full((N, K // GROUP), 0.25, dtype=torch.float64)
    steps = torch.round(weight / 0.25).clamp(-8, 7)
    found, gained = refit(
        weight, steps, scales, groups, hessian, damping=0.0, store=lambda s: 2.0 ** torch.round(torch.log2(s))
    )
    assert bool((gained >= 0).all())
    assert set(found.unique().tolist()) <= {0.125, 0.25, 0.5}
    kept = (found == scales).all(1)
    assert bool(kept.any())
    assert bool((gained[kept] == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_many_groups_on_two_threads(dtype: torch.dtype) -> None:
    """Rows of 4,864 columns in groups of 32, as Qwen2.5-0.5B has them, but for narrower groups."""
    n, k, group = 8, 1216, 8
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(n, k, generator=generator, dtype=torch.float64)
    inputs = torch.randn(2 * k, k, generator=generator, dtype=torch.float64)
    hessian = inputs.T @ inputs / len(inputs)
    groups = torch.arange(k) // group
    scales = weight.abs().view(n, -1, group).amax(2) / 7
    steps = torch.round(weight / scales[:, groups]).clamp(-8, 7)
    steps[3, :group] = 0  # for which any scale is as good
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found, gained = refit(
            *(one.to(dtype) for one in (weight, steps, scales)),
            groups,
            hessian.to(dtype),
            damping=0.01,
            store=lambda s: s,
        )
    finally:
        torch.set_num_threads(threads)
    root = np.linalg.cholesky(hessian.numpy() + 0.01 * np.eye(k))
    tolerance = 1e-8 if dtype is torch.float64 else 1e-4
    for row in range(n):
        parts = np.zeros((k // group, k))
        parts[groups.numpy(), np.arange(k)] = steps[row].numpy()
        wanted = np.linalg.lstsq((parts @ root).T, weight[row].numpy() @ root, rcond=None)[0]
        if row == 3:
            wanted[0] = scales[3, 0]
        np.testing.assert_allclose(found[row].numpy(), wanted, rtol=tolerance)
    assert bool((gained > 0).all())


def test_nothing_to_fit() -> None:
    """Groups of zeros, a Hessian of zeros and NaN keep their scales."""
    weight, hessian = problem(4)
    groups = torch.arange(K) // GROUP
    scales = torch.ones(N, K // GROUP, dtype=torch.float64)
    steps = torch.round(weight).clamp(-8, 7)
    steps[:, :GROUP] = 0
    for broken in (torch.zeros_like(hessian), torch.full_like(hessian, torch.nan)):
        found, gained = refit(weight, steps, scales, groups, broken, damping=0.0, store=lambda s: s)
        torch.testing.assert_close(found, scales)
        assert bool((gained == 0).all())
    found, _ = refit(weight, steps, scales, groups, hessian, damping=0.1, store=lambda s: s)
    torch.testing.assert_close(found[:, 0], scales[:, 0])


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("symmetric", [True, False])
def test_with_gptq(order: Order, symmetric: bool) -> None:
    """The integers stay, the error falls, and it is the one that the result has."""
    weight, hessian = problem(5)
    grid = GridSettings(4, GROUP, symmetric)
    plain = quantize_matrix(weight, hessian, GPTQSettings(grid, order))
    fitted = quantize_matrix(weight, hessian, GPTQSettings(grid, order, refit=True))
    np.testing.assert_array_equal(fitted.matrix.integers, plain.matrix.integers)
    np.testing.assert_array_equal(fitted.matrix.zeros, plain.matrix.zeros)
    assert (fitted.loss <= plain.loss + 1e-12).all()
    assert fitted.loss.sum() < plain.loss.sum()
    left = weight - torch.from_numpy(fitted.matrix.dense()).double()
    np.testing.assert_allclose(fitted.loss, ((left @ hessian) * left).sum(1).numpy(), rtol=1e-6)
    if not symmetric:  # seven digits: GGUF's Q4_1 holds the offset exactly
        mantissa = np.frexp(fitted.matrix.scales.astype(np.float64))[0] * 2**7
        np.testing.assert_array_equal(mantissa, np.round(mantissa))
