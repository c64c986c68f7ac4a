"""The search for ranges against trying each candidate in float64."""

import numpy as np
import pytest
import torch

from quantize.methods import ranges
from quantize.methods.grid import GridSettings, candidates, search_grid
from quantize.methods.hessian import output_error
from quantize.methods.ranges import search_ranges
from quantize.methods.rtn import quantize_matrix
from tests.oracles.awq import best_ranges

pytestmark = pytest.mark.oracle


def layer(n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and a Hessian of inputs that depend on each other; both float64."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(k, k, generator=generator, dtype=torch.float64) / k**0.5
    x = torch.randn(600, k, generator=generator, dtype=torch.float64) @ mix
    return torch.randn(n, k, generator=generator, dtype=torch.float64) * 0.05, x.T @ x / len(x)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_equals_trying_all_candidates(symmetric: bool, sweeps: int) -> None:
    weight, hessian = layer(6, 128, 0)
    settings = GridSettings(4, 32, symmetric)
    scales, zeros = search_ranges(weight, hessian, settings, sweeps)
    tried = list(candidates(weight.reshape(6, 4, 32), settings))
    for row in range(6):
        options = []
        for group in range(4):
            part = weight[row, group * 32 : (group + 1) * 32].numpy()
            rounded = []
            for scale, zero in tried:
                s, z = scale[row, group].item(), zero[row, group].item()
                rounded.append(s * (np.clip(np.rint(part / s) + z, 0, 15) - z))
            options.append(rounded)
        expected, errors = best_ranges(weight[row].numpy(), hessian.numpy(), options, sweeps)
        assert errors == sorted(errors, reverse=True)
        for group, number in enumerate(expected):
            assert scales[row, group] == tried[number][0][row, group]
            assert zeros[row, group] == tried[number][1][row, group]


def test_rows_don_t_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian = layer(10, 96, 1)
    settings = GridSettings(4, 32, symmetric=False)
    whole = search_ranges(weight, hessian, settings)
    monkeypatch.setattr(ranges, "CHUNK_ELEMENTS", 3 * 96)
    for one, other in zip(whole, search_ranges(weight, hessian, settings), strict=True):
        assert torch.equal(one, other)


def test_beats_the_diagonal() -> None:
    weight, hessian = layer(48, 256, 2)
    settings = GridSettings(4, 64, symmetric=False)
    by_diagonal = quantize_matrix(weight, settings, hessian)
    by_all = quantize_matrix(weight, settings, hessian, whole=True)
    assert by_all.loss.sum() < 0.95 * by_diagonal.loss.sum()
    change = (by_all.dense(weight) - weight).double()
    np.testing.assert_allclose(by_all.loss, output_error(change, hessian).numpy(), rtol=1e-3)


def test_one_group_for_a_row_is_searched_as_by_its_own_error() -> None:
    weight, _ = layer(8, 64, 3)
    importance = torch.rand(64, generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.1
    settings = GridSettings(4, -1)
    found = search_ranges(weight, torch.diag(importance), settings)
    for one, other in zip(found, search_grid(weight, importance, settings), strict=True):
        assert torch.equal(one, other)
