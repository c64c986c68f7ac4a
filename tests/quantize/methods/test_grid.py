"""Scales and zero points, against a search one weight at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from quantize.methods.grid import GridSettings, round_significant, round_to_grid, search_grid, snap
from tests.oracles.awq import significant
from tests.oracles.gptq import best_grid

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("symmetric", "signed"), [(True, True), (True, False), (False, False)])
def test_finds_the_best_candidate(bits: int, symmetric: bool, signed: bool) -> None:
    settings = GridSettings(bits, 32, symmetric, signed=signed)
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(5, 96, generator=generator, dtype=torch.float64) * 0.05
    weight[0, 3] = 1.0  # one that is far from all others
    importance = torch.rand(96, generator=generator, dtype=torch.float64) + 0.01
    scales, zeros = search_grid(weight, importance, settings)
    for n in range(5):
        for g in range(3):
            group = weight[n, 32 * g : 32 * g + 32].numpy()
            candidates = []
            for ratio in settings.ratios():
                if symmetric:
                    scale = float(np.float16(np.abs(group).max() / (2 ** (bits - 1) - 0.5) * ratio))
                    scale = -scale if signed and group.max() > -group.min() else scale
                    candidates.append((scale, 2 ** (bits - 1)))
                else:
                    low, high = min(group.min(), 0), max(group.max(), 0)
                    scale = significant((high - low) * (ratio / (2**bits - 1)), 7)
                    zero = int(min(max(np.rint(-low * ratio / scale), 1), 2**bits - 1))
                    candidates.append((scale, zero))
            best = best_grid(group, importance[32 * g : 32 * g + 32].numpy(), candidates, bits)
            assert (scales[n, g].item(), zeros[n, g].item()) == best


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_snap_to_the_nearest_point_of_their_grid(symmetric: bool) -> None:
    settings = GridSettings(3, 32, symmetric)
    generator = torch.Generator().manual_seed(6)
    groups = torch.randn(4, 2, 32, generator=generator, dtype=torch.float64)
    scale = torch.rand(4, 2, generator=generator, dtype=torch.float64) * 0.3 + 0.1
    zero = torch.full((4, 2), 4.0) if symmetric else torch.randint(1, 8, (4, 2), generator=generator)
    points = scale.numpy()[..., None] * (np.arange(8) - zero.numpy()[..., None])  # [4, 2, 8]
    found = snap(groups, scale, zero.double(), settings).numpy()
    nearest = np.abs(groups.numpy()[..., None] - points[:, :, None]).argmin(-1)
    np.testing.assert_allclose(found, np.take_along_axis(points, nearest, -1), rtol=1e-12)
    assert len(np.unique(nearest)) == 8


def test_cutting_off_an_outlier_pays_where_it_matters_little() -> None:
    weight = torch.randn(1, 32, generator=torch.Generator().manual_seed(1)) * 0.1
    weight[0, 0] = 0.5
    even = search_grid(weight, torch.ones(32), GridSettings(4, 32))[0]
    unimportant = torch.ones(32)
    unimportant[0] = 1e-6
    assert search_grid(weight, unimportant, GridSettings(4, 32))[0].abs() < even.abs()


def test_the_largest_weight_takes_the_farthest_integer() -> None:
    for sign in (1, -1):
        weight = sign * torch.tensor([[8.0, *range(-7, 8), *[0.0] * 16]])
        settings = GridSettings(4, 32)
        scales, zeros = search_grid(weight, torch.ones(32), settings)
        assert scales.sign().item() == -sign
        found = scales * (round_to_grid(weight, scales, zeros, settings).float() - zeros)
        alone = replace(settings, signed=False)
        scales, zeros = search_grid(weight, torch.ones(32), alone)
        plain = scales * (round_to_grid(weight, scales, zeros, alone).float() - zeros)
        assert (found - weight).norm() <= (plain - weight).norm()


def test_asymmetric_offsets_fit_float16() -> None:
    generator = torch.Generator().manual_seed(2)
    for size in (1e-6, 1e-4, 0.03, 7.0, 5e3):
        weight = torch.randn(64, 128, generator=generator) * size
        scales, zeros = search_grid(weight, torch.ones(128), GridSettings(4, 32, symmetric=False))
        offsets = (scales * zeros).numpy()
        assert (offsets.astype(np.float16).astype(np.float32) == offsets).all()
        assert ((zeros >= 1) & (zeros <= 15)).all()


def test_round_significant() -> None:
    assert round_significant(torch.tensor([1.0, 0.0, 129.0, 1 / 3]), 7).tolist() == [
        1,
        0,
        128,
        43 / 128 - 1 / 256,
    ]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [0.0, 1e-12, 1e6])
def test_extremes_stay_finite(symmetric: bool, size: float) -> None:
    settings = GridSettings(4, 32, symmetric)
    weight = torch.full((2, 64), size)
    weight[1] *= -1
    scales, zeros = search_grid(weight, torch.zeros(64), settings)
    assert torch.isfinite(scales).all()
    assert (scales != 0).all()
    integers = round_to_grid(weight, scales, zeros, settings)
    assert integers.max() <= 15
    if size < 1:
        assert (integers.float() == zeros.repeat_interleave(32, 1)).all()


def test_what_is_no_grid() -> None:
    with pytest.raises(ValueError, match="5 bits"):
        GridSettings(5)
    with pytest.raises(ValueError, match="groups of 48"):
        GridSettings(4, 48)
    with pytest.raises(ValueError, match="don't divide 576"):
        GridSettings(4, 128).columns(576)
