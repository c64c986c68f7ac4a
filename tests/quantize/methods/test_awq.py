"""AWQ against running the layer in float64, and folding against an unchanged function."""

import numpy as np
import pytest
import torch

from quantize.methods import awq
from quantize.methods.awq import AWQSettings, fold_layer, quantize_matrix, search_scales
from quantize.methods.folding import FoldGroup, can_fold, fold
from quantize.methods.grid import GridSettings
from quantize.methods.hessian import Hessian, divided, output_error
from tests.oracles.awq import output_errors

pytestmark = pytest.mark.oracle

GRID = GridSettings(4, 32, symmetric=False)


def outlying(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and inputs [T, K] of which a few are much larger than the rest."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(400, columns, generator=generator)
    x[:, ::17] *= 20
    return torch.randn(rows, columns, generator=generator) * 0.05, x


@pytest.mark.parametrize("seed", [0, 1])
def test_search_agrees_with_running_the_layer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = outlying(24, 96, seed)
    hessian = Hessian(96, magnitudes=True)
    hessian.add(x)
    tried: list[torch.Tensor] = []
    losses: list[float] = []
    loss_of = awq._loss

    def watched(
        weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor, grid: GridSettings
    ) -> float:
        tried.append(scales)
        losses.append(loss_of(weight, hessian, scales, grid))
        return losses[-1]

    monkeypatch.setattr(awq, "_loss", watched)
    choice = search_scales([weight], [hessian.matrix()], hessian.mean_magnitude, AWQSettings(GRID))
    assert len(tried) == 20
    assert (tried[0] == 1).all()
    expected = output_errors(
        weight.double().numpy(), x.double().numpy(), [scales.double().numpy() for scales in tried], 4, 32
    )
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    best = int(np.argmin(expected))
    assert choice.exponent == best / 20
    assert choice.loss < 0.8 * losses[0]
    # The paper's scales: m^a / v^(1-a), up to a factor.
    a = choice.exponent
    sizes = (weight.abs().reshape(24, 3, 32) / weight.abs().reshape(24, 3, 32).amax(-1, keepdim=True)).mean(0)
    scales = x.abs().mean(0) ** a / (sizes.reshape(-1) ** (1 - a) + 1e-4)
    ratio = choice.scales / scales
    torch.testing.assert_close(ratio, ratio.mean().expand(96), rtol=1e-3, atol=0)


def test_a_part_of_the_outputs_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = outlying(512, 96, 2)
    hessian = Hessian(96, magnitudes=True)
    hessian.add(x)
    arguments = ([weight[:200], weight[200:]], [hessian.matrix()] * 2, hessian.mean_magnitude)
    glanced = search_scales(*arguments, AWQSettings(GRID, rows=0))
    monkeypatch.setattr(awq, "GLANCED_ROWS", 512)
    whole = search_scales(*arguments, AWQSettings(GRID, rows=0))
    part = search_scales(*arguments, AWQSettings(GRID, rows=64))
    assert abs(whole.exponent - part.exponent) <= 0.1
    assert part.loss == pytest.approx(whole.loss, rel=0.15)
    assert whole.loss <= glanced.loss <= 1.01 * whole.loss


def test_only_exponents_that_come_into_question_are_judged_by_all_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, x = outlying(512, 96, 8)
    hessian = Hessian(96, magnitudes=True)
    hessian.add(x)
    few = Hessian(96, magnitudes=True)
    few.add(x[:40])
    judged: list[tuple[int, float]] = []
    loss_of = awq._loss

    def watched(
        weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor, grid: GridSettings
    ) -> float:
        loss = loss_of(weight, hessian, scales, grid)
        judged.append((len(weight), loss))
        return loss

    monkeypatch.setattr(awq, "_loss", watched)
    weights = [weight[:256], weight[256:384], weight[384:]]
    hessians = [hessian.matrix(), few.matrix(), hessian.matrix()]
    choice = search_scales(weights, hessians, hessian.mean_magnitude, AWQSettings(GRID, rows=256))
    # Half of each budget for each Hessian: 64 outputs of 384 and of 128, then 128 of 384 and all 128.
    rows = [rows for rows, _ in judged]
    assert rows == [64] * 40 + [128] * 10
    losses = [3 * judged[i][1] + judged[i + 1][1] for i in range(40, 50, 2)]
    assert choice.loss == pytest.approx(min(losses), rel=1e-12)


def test_rounding_knows_of_the_scales() -> None:
    weight, x = outlying(24, 96, 3)
    hessian = Hessian(96, magnitudes=True)
    hessian.add(x)
    settings = AWQSettings(GRID)
    choice = search_scales([weight], [hessian.matrix()], hessian.mean_magnitude, settings)
    scaled = divided(hessian.matrix(), choice.scales)
    solved = quantize_matrix(weight * choice.scales, scaled, settings)
    effective = solved.dense(weight) / choice.scales
    expected = output_error((effective - weight).double(), hessian.matrix().double())
    np.testing.assert_allclose(solved.loss, expected.numpy(), rtol=1e-3)
    plain = quantize_matrix(weight, hessian.matrix(), settings)
    assert solved.loss.sum() < 0.8 * plain.loss.sum()


def test_zero_inputs_and_zero_weights_keep_scales_finite() -> None:
    weight, x = outlying(16, 64, 4)
    x[:, 5] = 0
    weight[:, 9] = 0
    hessian = Hessian(64, magnitudes=True)
    hessian.add(x)
    choice = search_scales([weight], [hessian.matrix()], hessian.mean_magnitude, AWQSettings(GRID))
    assert torch.isfinite(choice.scales).all()
    assert (choice.scales > 0).all()


@pytest.mark.parametrize("adds_one", [True, False])
def test_folding_into_a_norm_changes_nothing(adds_one: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    norm = torch.randn(8, generator=generator, dtype=torch.float64)
    weights = {
        "norm.weight": norm,
        "q.weight": torch.randn(4, 8, generator=generator, dtype=torch.float64),
        "router.weight": torch.randn(3, 8, generator=generator, dtype=torch.float64),
    }
    x = torch.randn(6, 8, generator=generator, dtype=torch.float64)

    def outputs() -> torch.Tensor:
        normed = x * (weights["norm.weight"] + (1 if adds_one else 0))
        return torch.cat([normed @ weights["q.weight"].T, normed @ weights["router.weight"].T], 1)

    before = outputs()
    group = FoldGroup("norm", ("q",), ("router",), source_adds_one=adds_one)
    assert can_fold(weights, group)
    fold(weights, group, torch.rand(8, generator=generator) + 0.5)
    assert not torch.equal(weights["norm.weight"], norm)
    torch.testing.assert_close(outputs(), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [None, (4, 12)])
def test_folding_into_a_matrix_changes_nothing(rows: tuple[int, int] | None) -> None:
    generator = torch.Generator().manual_seed(6)
    n = 8 if rows is None else 16
    weights = {
        "up.weight": torch.randn(n, 5, generator=generator, dtype=torch.float64),
        "up.bias": torch.randn(n, generator=generator, dtype=torch.float64),
        "down.weight": torch.randn(3, 8, generator=generator, dtype=torch.float64),
    }
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    start, stop = rows or (0, n)

    def output() -> torch.Tensor:
        up = x @ weights["up.weight"].T + weights["up.bias"]
        return up[:, start:stop] @ weights["down.weight"].T

    before, untouched = output(), weights["up.weight"][:start].clone()
    group = FoldGroup("up", ("down",), source_rows=rows)
    fold(weights, group, torch.rand(8, generator=generator) + 0.5)
    torch.testing.assert_close(output(), before, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights["up.weight"][:start], untouched, rtol=1e-6, atol=1e-6)
    assert not can_fold(weights, FoldGroup("down", ("up",)))


def test_fold_layer_skips_what_does_not_fit_and_what_was_not_seen() -> None:
    weight, x = outlying(24, 96, 7)
    hessian = Hessian(96, magnitudes=True)
    hessian.add(x)
    weights = {
        "norm.weight": torch.ones(96),
        "a.weight": weight,
        "b.weight": weight.flip(0),
        "v.weight": weight[:8],
        "o.weight": torch.randn(8, 32),
    }
    groups = [FoldGroup("norm", ("a", "b")), FoldGroup("v", ("o",)), FoldGroup("a", ("unseen",))]
    chosen = fold_layer(weights, groups, {"a": hessian}, AWQSettings(GRID))
    assert set(chosen) == {"a", "b"}
    torch.testing.assert_close(weights["norm.weight"], 1 / chosen["a"].scales)
    torch.testing.assert_close(weights["b.weight"], weight.flip(0) * chosen["b"].scales)
