"""Scales between inputs and weights, against the error's formula written out in float64."""

import numpy as np
import pytest
import torch

from quantize.methods.int8 import round_tokens
from quantize.methods.smoothing import GPTQ_LEAVES, balanced

pytestmark = pytest.mark.oracle


def error(x: np.ndarray, w: np.ndarray, s: np.ndarray) -> float:
    """A B + g C X, token by token and output by output; no token counts less than another."""
    tokens = np.mean([max((t / s) ** 2) for t in x])
    outputs = sum(max((row * s) ** 2) for row in w)
    energy = sum(np.mean((x[:, k] / s[k]) ** 2) for k in range(len(s)))
    return float(tokens * np.sum((w * s) ** 2) + GPTQ_LEAVES * outputs * energy)


def problem(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [32, 24] and tokens [200, 24], all about the same size, whose inputs differ in theirs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 24, generator=generator)
    spread_out = torch.exp(1.5 * torch.randn(24, generator=generator))
    x = torch.nn.functional.normalize(x) * spread_out
    return torch.randn(32, 24, generator=generator) * torch.exp(torch.randn(24, generator=generator)), x


@pytest.mark.parametrize("seed", range(4))
def test_near_the_least_error_that_there_is(seed: int) -> None:
    """The least one by many small steps of one input at a time, each kept where it helps; the logarithm is
    convex, so nothing far away is better."""
    weight, x = problem(seed)
    sizes = x.square().sum(1)
    x = x * (sizes.median() / sizes).sqrt()[:, None]  # every token counts alike
    w64, x64 = weight.double().numpy(), x.double().numpy()
    found = balanced([weight[:20], weight[20:]], x).double().numpy()
    best = found.copy()
    least = error(x64, w64, best)
    for step in (0.2, 0.05, 0.02):
        for _ in range(12):
            before = least
            for k in range(len(best)):
                for factor in (np.exp(step), np.exp(-step)):
                    tried = best.copy()
                    tried[k] *= factor
                    if (now := error(x64, w64, tried)) < least:
                        best, least = tried, now
            if least == before:
                break
    maxima = np.sqrt(np.abs(x64).max(0) / np.abs(w64).max(0))  # SmoothQuant's choice
    assert error(x64, w64, found) < 1.1 * least
    assert error(x64, w64, found) < 0.97 * error(x64, w64, maxima)
    assert error(x64, w64, found) < 0.8 * error(x64, w64, np.ones(24))
    assert np.log(found).mean() == pytest.approx(0, abs=1e-5)


def test_two_inputs_by_hand() -> None:
    """Inputs of 16 and 1 before weights of 1 and 1. With s_1^2 = 1 / s_2^2 = r, and r between 1 and 16, the
    error is 8 (256 / r) (r + 1 / r) + g 8 r (256 / r + r), which is least where r^4 = 256 / g."""
    x, weight = torch.tensor([[16.0, 1.0]] * 8), torch.tensor([[1.0, 1.0]] * 8)
    first, second = balanced([weight], x).tolist()
    assert first * second == pytest.approx(1, rel=1e-5)
    assert first**2 == pytest.approx((256 / GPTQ_LEAVES) ** 0.25, rel=0.03)


def test_outliers_no_longer_spoil_rounded_inputs() -> None:
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(32, 64, generator=generator), torch.randn(200, 64, generator=generator)
    x[:, 7] *= 60
    scales = balanced([weight], x)
    wanted = x @ weight.T
    plain = (round_tokens(x) @ weight.T - wanted).norm()
    assert (round_tokens(x / scales) @ (weight * scales).T - wanted).norm() < 0.25 * plain


def test_attention_sinks_count_as_others_do() -> None:
    """Two tokens in an input that is else like the others: how large they are changes nothing."""
    weight, x = problem()
    x = torch.cat([x, torch.zeros(2, 24)])
    found = []
    for size in (3e2, 3e5):
        x[-2:, 5] = size
        found.append(balanced([weight], x))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=0)


def test_what_is_never_anything_keeps_its_size() -> None:
    weight, x = problem()
    x[:, 3], weight[:, 4] = 0, 0
    scales = balanced([weight], x)
    assert scales[[3, 4]].tolist() == [1.0, 1.0]
    assert bool((scales > 0).all())
    assert balanced([weight], torch.zeros(5, 24)).tolist() == [1.0] * 24
