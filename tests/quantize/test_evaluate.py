"""Perplexity from sums, and the text that it is measured on."""

import hashlib
import math
import random
import statistics
from importlib.resources import files

import pytest

from quantize.evaluate import Perplexity

EVAL_TEXT_SHA256 = "e209c8df65dd3b2855b45f778240a9ce00ad3ffc0f212ffb133c823a1924234b"


def of(losses: list[float]) -> Perplexity:
    return Perplexity(math.fsum(losses), math.fsum(loss * loss for loss in losses), len(losses))


def test_is_the_inverse_of_the_geometric_mean_of_the_probabilities() -> None:
    probabilities = [0.5, 0.125, 0.9, 0.01, 0.3]
    expected = 1 / statistics.geometric_mean(probabilities)
    assert of([-math.log(p) for p in probabilities]).value == pytest.approx(expected, rel=1e-14)


def test_of_equal_guesses_is_their_number() -> None:
    guess = of([math.log(259)] * 1000)
    assert guess.value == pytest.approx(259)
    assert guess.standard_error == pytest.approx(0, abs=1e-3)


def test_the_standard_error_is_that_of_the_mean_times_the_value() -> None:
    source = random.Random(5)
    losses = [source.expovariate(0.4) for _ in range(500)]
    mean_error = statistics.stdev(losses) / math.sqrt(len(losses))
    result = of(losses)
    assert result.standard_error == pytest.approx(mean_error * result.value, rel=1e-12)


def test_windows_add_up() -> None:
    losses = [random.Random(7).uniform(0, 9) for _ in range(40)]
    parts = [of(losses[start : start + 8]) for start in range(0, 40, 8)]
    total = sum(parts, Perplexity())
    assert total.value == pytest.approx(of(losses).value, rel=1e-14)
    assert total.standard_error == pytest.approx(of(losses).standard_error, rel=1e-9)
    assert total.n_tokens == 40


def test_nothing_scored_is_not_a_number() -> None:
    assert math.isnan(Perplexity().value)
    assert math.isnan(of([1.0]).standard_error)


def test_what_floats_do_not_hold_is_infinite() -> None:
    assert of([1000.0, 1000.0]).value == math.inf


def test_the_text_has_not_changed() -> None:
    text = files("quantize").joinpath("data", "eval.txt").read_bytes()
    assert hashlib.sha256(text).hexdigest() == EVAL_TEXT_SHA256
    assert b"\r" not in text
    assert len(text.decode("utf-8")) > 20_000
