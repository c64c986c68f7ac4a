"""GPTQ against the paper's algorithm, in float64 to the integer and in float32 to exact ties."""

import numpy as np
import pytest
import torch

from quantize.methods.gptq import GPTQSettings, Order, quantize_matrices, quantize_matrix
from quantize.methods.grid import GridSettings
from quantize.methods.hessian import Hessian, output_error
from quantize.methods.rtn import quantize_matrix as round_matrix
from tests.oracles.gptq import gptq

pytestmark = pytest.mark.oracle


def layer(n: int, k: int, seed: int = 0, tokens: int = 1500) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and a Hessian whose columns differ in importance and depend on each other; both float32."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(k, k, generator=generator) / k**0.5
    spread = torch.exp(2 * torch.rand(k, generator=generator))
    x = torch.randn(tokens, k, generator=generator) @ mix + torch.randn(tokens, k, generator=generator) / 2
    hessian = Hessian(k)
    hessian.add(x * spread)
    return torch.randn(n, k, generator=generator) * 0.05, hessian.matrix().clone()


CASES = [
    pytest.param(bits, group, symmetric, order, id=f"{bits}-{group}-{symmetric}-{order}")
    for bits, group, symmetric, order in (
        (4, 32, True, Order.STATIC),
        (4, 128, False, Order.STATIC),
        (4, 64, True, Order.CLASSIC),
        (4, 32, False, Order.CLASSIC),
        (4, 64, True, Order.GIVEN),
        (3, 128, False, Order.GIVEN),
        (2, 32, True, Order.STATIC),
        (3, -1, True, Order.CLASSIC),
        (8, 64, True, Order.STATIC),
    )
]


@pytest.mark.parametrize(("bits", "group", "symmetric", "order"), CASES)
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("own", [False, True])
def test_equals_the_paper(
    bits: int, group: int, symmetric: bool, order: Order, *, double: bool, own: bool
) -> None:
    """Also where damping is a share of each column's own diagonal and of the median one."""
    weight, hessian = layer(24, 384)
    if double:
        weight, hessian = weight.double(), hessian.double()
    settings = GPTQSettings(GridSettings(bits, group, symmetric), order, own_damping=own)
    solved = quantize_matrix(weight, hessian, settings)
    matrix = solved.matrix
    expected = gptq(
        weight.double().numpy(),
        hessian.double().numpy(),
        matrix.scales.astype(np.float64),
        matrix.zeros.astype(np.float64),
        bits=bits,
        groups=(matrix.sequential_groups() if matrix.groups is None else matrix.groups).astype(np.int64),
        by_importance=order is not Order.GIVEN,
        damping=0.01,
        own_damping=own,
    )
    differs = matrix.integers != expected.integers
    if double:
        assert not differs.any()
    # In float32 a quotient close to a tie may round the other way, and what follows in its row with it.
    for row in np.nonzero(differs.any(1))[0]:
        first = next(column for column in expected.order if differs[row, column])
        assert expected.ties[row, first] < 1e-3
    assert differs.any(1).sum() <= 2
    assert solved.note == ""


def test_classic_order_carries_its_groups() -> None:
    weight, hessian = layer(8, 128)
    matrix = quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32), Order.CLASSIC)).matrix
    order = np.argsort(-hessian.diagonal().numpy(), kind="stable")
    assert matrix.groups is not None
    assert matrix.groups[order].tolist() == [k // 32 for k in range(128)]
    assert not matrix.is_sequential
    assert quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32))).matrix.groups is None


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_loss_is_the_error_of_the_outputs(own: bool, refit: bool) -> None:
    weight, hessian = layer(40, 256)
    settings = GPTQSettings(GridSettings(4, 32), own_damping=own, refit=refit)
    solved = quantize_matrix(weight, hessian, settings)
    expected = output_error((solved.dense(weight) - weight).double(), hessian.double()).numpy()
    np.testing.assert_allclose(solved.loss, expected, rtol=1e-3)
    assert solved.loss.sum() == pytest.approx(expected.sum(), rel=1e-3)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_beats_rounding_and_orders_help(bits: int) -> None:
    weight, hessian = layer(64, 512)
    losses = {
        order: quantize_matrix(weight, hessian, GPTQSettings(GridSettings(bits, 64), order)).loss.sum()
        for order in Order
    }
    nearest = round_matrix(weight, GridSettings(bits, 64), hessian).loss.sum()
    assert losses[Order.GIVEN] < 0.8 * nearest
    assert losses[Order.STATIC] < losses[Order.GIVEN]
    assert losses[Order.CLASSIC] < losses[Order.GIVEN]


def test_one_large_input_does_not_drown_the_others() -> None:
    """As attention sinks make it: one per cent of the mean diagonal is more than the other columns have."""
    weight, hessian = layer(32, 128)
    hessian[7], hessian[:, 7] = 0, 0
    hessian[7, 7] = 1e5 * hessian.diagonal().mean()
    losses = []
    for own in (False, True):
        solved = quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32), own_damping=own))
        error = solved.dense(weight) - weight
        error[:, 7] = 0
        losses.append(output_error(error, hessian).sum().item())
    assert losses[1] < 0.8 * losses[0]


@pytest.mark.parametrize("order", Order)
def test_inputs_that_are_nearly_nothing_do_not_make_up_for_the_others(order: Order) -> None:
    """As some of a norm's outputs are: all could be made up for there, by weights that spoil their group."""
    weight, hessian = layer(32, 128)
    small = torch.ones(128)
    small[5::8] = 1e-4
    hessian *= small * small[:, None]
    solved = quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32), order, own_damping=True))
    largest = np.abs(solved.matrix.scales).max(1)
    allowed = 2.0 * weight.abs().amax(1).numpy() / 7.5
    assert (largest < allowed).all()


def test_matrices_with_the_same_inputs_are_as_one_by_one() -> None:
    weight, hessian = layer(48, 256)
    settings = GPTQSettings(GridSettings(4, 64))
    hessian = hessian.double()
    together = quantize_matrices([weight[:8], weight[8:24], weight[24:]], hessian, settings)
    assert [solved.matrix.shape for solved in together] == [(8, 256), (16, 256), (24, 256)]
    alone = quantize_matrix(weight[8:24], hessian, settings)
    np.testing.assert_array_equal(together[1].matrix.integers, alone.matrix.integers)
    np.testing.assert_allclose(together[1].loss, alone.loss)


def test_dead_columns_become_zero() -> None:
    weight, hessian = layer(16, 128)
    hessian[5], hessian[:, 5] = 0, 0
    solved = quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32)))
    assert (solved.dense(weight)[:, 5] == 0).all()
    assert solved.note == ""
    everything = quantize_matrix(weight, torch.zeros_like(hessian), GPTQSettings(GridSettings(4, 32)))
    assert (everything.dense(weight) == 0).all()


@pytest.mark.parametrize("own", [False, True])
def test_rescues_what_cannot_be_factored(own: bool) -> None:
    weight, hessian = layer(16, 128)
    units = hessian.diagonal().double() if own else hessian.diagonal().double().mean().expand(128)
    spread = units.sqrt()
    values, vectors = torch.linalg.eigh(hessian.double() / spread / spread[:, None])
    values[0] = -0.05  # as no sum of squares can be, but sums in 32 bits may
    broken = ((vectors * values @ vectors.T) * spread * spread[:, None]).float()
    solved = quantize_matrix(weight, broken, GPTQSettings(GridSettings(4, 32), own_damping=own))
    assert solved.note == "damping raised to 0.1"
    assert np.isfinite(solved.matrix.dense()).all()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -1e9])
def test_rounds_to_the_nearest_where_nothing_helps(poison: float) -> None:
    weight, hessian = layer(16, 128)
    hessian[3, 3] = poison
    solved = quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32)))
    assert "rounded to the nearest" in solved.note
    assert np.isfinite(solved.matrix.dense()).all()
    assert np.isnan(solved.loss).all()


def test_refuses_weights_that_are_not_numbers() -> None:
    weight, hessian = layer(4, 32)
    weight[1, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32)))
    with pytest.raises(ValueError, match="Hessian"):
        quantize_matrix(weight[:, :16], hessian, GPTQSettings(GridSettings(4, -1)))


def test_leaves_its_arguments_alone() -> None:
    weight, hessian = layer(8, 64)
    before = weight.clone(), hessian.clone()
    quantize_matrix(weight, hessian, GPTQSettings(GridSettings(4, 32)))
    assert torch.equal(weight, before[0])
    assert torch.equal(hessian, before[1])
