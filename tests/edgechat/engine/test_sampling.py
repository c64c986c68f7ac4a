"""Sampling against textbook implementations in float64, and against llama.cpp's own sampler chain."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgechat.engine.sampling import BadLogits, Distribution, Row, Sampler, largest
from edgechat.records import SamplingSettings

SIZES = (7, 300, 5_000, 49_152)


def random_row(size: int, seed: int, spread: float = 3.0) -> Row:
    row: Row = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    return row


def settings(**options: Any) -> SamplingSettings:
    """Everything off, but for `options`."""
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
    return SamplingSettings(**(off | options))


SETTINGS = [
    settings(),
    settings(temperature=0.3),
    settings(top_k=1),
    settings(top_k=40),
    settings(top_k=10**6),
    settings(top_p=0.9),
    settings(top_p=0.0),
    settings(top_p=0.3, temperature=2.0),
    settings(min_p=0.05),
    settings(min_p=1.0),
    settings(min_p=0.05, top_p=0.8),
    settings(top_k=40, top_p=0.95, min_p=0.05, temperature=0.8),
    settings(top_k=1000, top_p=0.99, min_p=0.001, temperature=1.5),
    settings(top_k=40, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    settings(repetition_penalty=1.1, penalty_last_n=3, min_p=0.1),
    settings(presence_penalty=-1.0, top_p=0.7, temperature=0.5),
    SamplingSettings(),
]


def textbook(row: Row, options: SamplingSettings, recent: Sequence[int]) -> dict[int, float]:
    """Penalties, top-k, top-p, min-p, temperature, one after the other, by full sorts in float64."""
    logits = row.astype(np.float64)
    window = list(recent)[-options.penalty_last_n :] if options.penalty_last_n else []
    for token in set(window):
        logit = float(logits[token])
        logit = logit * options.repetition_penalty if logit <= 0 else logit / options.repetition_penalty
        logits[token] = logit - window.count(token) * options.frequency_penalty - options.presence_penalty
    kept = sorted(range(len(row)), key=lambda token: (-logits[token], token))
    if options.top_k:
        kept = kept[: options.top_k]
    if options.top_p < 1:
        weights = [math.exp(logits[token] - logits[kept[0]]) for token in kept]
        total, mass, count = math.fsum(weights), 0.0, 0
        while count < len(kept):
            mass += weights[count]
            count += 1
            if mass >= options.top_p * total:
                break
        kept = kept[:count]
    if options.min_p > 0:
        best = logits[kept[0]]
        kept = [token for token in kept if logits[token] >= best + math.log(options.min_p)] or kept[:1]
    weights = [math.exp((logits[token] - logits[kept[0]]) / options.temperature) for token in kept]
    total = math.fsum(weights)
    return {token: weight / total for token, weight in zip(kept, weights, strict=True)}


def llama_cpp(row: Row, options: SamplingSettings, recent: Sequence[int]) -> dict[int, float]:
    """The same through llama.cpp's sampler chain."""
    import llama_cpp as lib

    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    steps = [
        lib.llama_sampler_init_penalties(
            len(row),
            options.penalty_last_n,
            options.repetition_penalty,
            options.frequency_penalty,
            options.presence_penalty,
        ),
        lib.llama_sampler_init_top_k(options.top_k),
        lib.llama_sampler_init_top_p(options.top_p, 1),
        lib.llama_sampler_init_min_p(options.min_p, 1),
        lib.llama_sampler_init_temp(options.temperature),
        lib.llama_sampler_init_dist(1),  # makes the probabilities
    ]
    for step in steps:
        lib.llama_sampler_chain_add(chain, step)
    for token in recent:
        lib.llama_sampler_accept(chain, token)
    data = (lib.llama_token_data * len(row))()
    for token, logit in enumerate(row.tolist()):
        data[token].id, data[token].logit = token, logit
    array = lib.llama_token_data_array(data=data, size=len(row), selected=-1, sorted=False)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    result = {array.data[i].id: array.data[i].p for i in range(array.size)}
    lib.llama_sampler_free(chain)
    return result


def check(ours: Distribution, theirs: dict[int, float], tolerance: float) -> None:
    """The same candidates with the same probabilities."""
    assert len(set(ours.ids.tolist())) == len(ours.ids)
    assert set(ours.ids.tolist()) == set(theirs)
    assert ours.probabilities.dtype == np.float64
    assert math.isclose(ours.probabilities.sum(), 1, abs_tol=1e-9)
    expected = np.array([theirs[token] for token in ours.ids.tolist()])
    assert np.abs(ours.probabilities - expected).max() < tolerance


@pytest.mark.parametrize("options", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("size", SIZES)
def test_the_distribution_is_the_textbook_s(size: int, options: SamplingSettings) -> None:
    for seed, spread in ((size, 3.0), (size + 1, 0.5)):
        row = random_row(size, seed, spread)
        recent = [*np.random.default_rng(seed).integers(0, size, 100).tolist(), 1, 2, 2, 3]
        before = row.copy()
        ours = Sampler(options, recent).distribution(row)
        check(ours, textbook(row, options, recent), 1e-6)
        assert np.array_equal(row, before)


@pytest.mark.parametrize("options", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("size", SIZES[:3])
def test_the_distribution_is_llama_cpp_s(size: int, options: SamplingSettings) -> None:
    row = random_row(size, size + 7)
    recent = [*np.random.default_rng(size).integers(0, size, 100).tolist(), 1, 2, 2, 3]
    check(Sampler(options, recent).distribution(row), llama_cpp(row, options, recent), 1e-5)


def test_penalties_follow_the_window() -> None:
    options = settings(repetition_penalty=1.5, frequency_penalty=0.3, penalty_last_n=8, min_p=0.02)
    row = random_row(40, 3)
    sampler = Sampler(options, [1, 2, 3])
    text = [1, 2, 3]
    random = np.random.default_rng(5)
    for _ in range(60):
        token = int(random.integers(0, 12))
        sampler.accept(token)
        text.append(token)
        check(sampler.distribution(row), textbook(row, options, text), 1e-6)


@pytest.mark.parametrize("size", [1, 2, 1000, 1024, 2047, 2048, 5000, 49_152, 262_144])
@pytest.mark.parametrize("count", [1, 40, 700])
def test_the_largest_are_those_of_a_full_sort(size: int, count: int) -> None:
    count = min(count, size)
    row = random_row(size, size)
    assert largest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()
    row = np.round(row)  # many ties: the lower ids
    assert largest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()
    row[size // 3 :] = -np.inf  # fewer candidates than asked for: no banned one among them
    finite = int(np.isfinite(row).sum())
    if finite:
        expected = np.argsort(-row, kind="stable")[: min(count, finite)]
        assert largest(row, count).tolist() == expected.tolist()


def test_greedy_is_the_largest_logit() -> None:
    row = random_row(49_152, 1)
    sampler = Sampler(SamplingSettings(temperature=0, top_k=3))
    assert sampler.sample(row) == int(np.argmax(row))
    assert sampler.distribution(row).ids.tolist() == [int(np.argmax(row))]
    assert sampler.distribution(row).probabilities.tolist() == [1.0]


class LogitBias:
    """A step of one's own: adds a fixed number to the logits of some tokens; -inf bans one."""

    def __init__(self, bias: dict[int, float]) -> None:
        self.bias = bias

    def apply(self, row: Row) -> None:
        for token, more in self.bias.items():
            row[token] += more

    def accept(self, token: int) -> None:
        """A bias doesn't depend on the text."""


def test_greedy_takes_penalties_and_biases() -> None:
    row = np.array([1.0, 3.0, 2.9], dtype=np.float32)
    assert Sampler(SamplingSettings(temperature=0, repetition_penalty=1.5), [1]).sample(row) == 2
    assert (
        Sampler(SamplingSettings(temperature=0), steps=[LogitBias({1: -math.inf, 0: 5.0})]).sample(row) == 0
    )


def test_a_banned_token_is_never_drawn() -> None:
    row = random_row(5_000, 2)
    best = int(row.argmax())
    distribution = Sampler(SamplingSettings(), steps=[LogitBias({best: -math.inf})]).distribution(row)
    assert distribution.probability(best) == 0
    assert distribution.probability(int(distribution.ids[0])) == distribution.probabilities[0]


@pytest.mark.parametrize("options", [*SETTINGS, settings(temperature=0)], ids=range(len(SETTINGS) + 1))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits_are_refused_wherever_they_are(size: int, options: SamplingSettings, bad: float) -> None:
    for place in (0, size // 2, size - 1):
        row = random_row(size, 4)
        row[place] = bad
        with pytest.raises(BadLogits):
            Sampler(options).sample(row)


@pytest.mark.parametrize("options", [*SETTINGS, settings(temperature=0)], ids=range(len(SETTINGS) + 1))
def test_a_row_of_banned_tokens_is_refused(options: SamplingSettings) -> None:
    with pytest.raises(BadLogits):
        Sampler(options).sample(np.full(5_000, -np.inf, dtype=np.float32))


def test_the_seed_decides() -> None:
    rows = [random_row(300, seed) for seed in range(30)]
    options = settings(temperature=1.5, top_k=40)

    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(settings(temperature=1.5, top_k=40, seed=seed))
        return [sampler.sample(row) for row in rows]

    assert options.seed == 1
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(None) != draw(None)


def test_draws_follow_the_distribution() -> None:
    row = np.log(np.array([0.5, 0.25, 0.2, 0.05], dtype=np.float32))
    sampler = Sampler(settings(seed=3))
    counts = np.bincount([sampler.sample(row) for _ in range(20_000)], minlength=4)
    expected = np.array([0.5, 0.25, 0.2, 0.05]) * 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi squared, 3 degrees of freedom, p = 0.001


def test_a_draw_at_the_borders() -> None:
    distribution = Distribution(np.array([7, 8, 9]), np.array([0.5, 0.25, 0.25]))
    assert [distribution.draw(u) for u in (0.0, 0.499, 0.5, 0.75, math.nextafter(1, 0))] == [7, 7, 8, 9, 9]


def test_a_draw_from_many_is_the_same_as_from_few() -> None:
    random = np.random.default_rng(9)
    for size in (4097, 5_000, 50_000):
        probabilities = random.random(size) ** 20
        probabilities[1024:3072] = 0  # blocks without any mass
        probabilities /= probabilities.sum()
        distribution = Distribution(random.permutation(size), probabilities)
        cumulated = probabilities.cumsum() / probabilities.sum()
        for uniform in (0.0, *random.random(200).tolist(), math.nextafter(1, 0)):
            place = int(np.flatnonzero(distribution.ids == distribution.draw(uniform))[0])
            assert probabilities[place] > 0
            assert cumulated[place] >= uniform - 1e-12
            assert cumulated[place] - probabilities[place] <= uniform + 1e-12
