"""Judging rows: 20,000 draws have the target's distribution, and each token is taken before the next."""

import numpy as np
import pytest

from edgechat.engine.judging import judge_rows
from edgechat.engine.sampling import BadLogits, Sampler
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.records import SamplingSettings
from edgechat.runtimes.base import Logits
from tests.oracles.speculation import chi_squared_p, count

N_VOCAB = 12
DRAWS = 20_000


def some_rows(seed: int, n: int) -> Logits:
    return np.random.default_rng(seed).standard_normal((n, N_VOCAB)).astype(np.float32) * 1.5


def softmax(row: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return weights / weights.sum()


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("drawn", [True, False])
def test_two_drafts_leave_the_targets_distribution(temperature: float, drawn: bool) -> None:
    sampling = SamplingSettings(temperature=temperature, top_k=0, top_p=1, min_p=0)
    target, drafter = Sampler(sampling), Sampler(sampling)
    firsts, seconds = some_rows(1, 1)[0], some_rows(2, N_VOCAB)  # what follows depends on the token before
    q_first, q_seconds = some_rows(3, 1)[0], some_rows(4, N_VOCAB)

    def draft(row: np.ndarray) -> Draft:
        if not drawn:
            return Draft(int(row.argmax()), Source.NGRAM, 0.5)
        q = drafter.distribution(row)
        return Draft(q.draw(drafter.random.random()), Source.MODEL, 0.5, q)

    p = softmax(firsts, temperature)
    expected = {
        (a, b): p[a] * softmax(seconds[a], temperature)[b] for a in range(N_VOCAB) for b in range(N_VOCAB)
    }
    seen, accepted = [], 0
    for _ in range(DRAWS):
        first = draft(q_first)
        second = draft(q_seconds[first.token])
        rows = np.stack([firsts, seconds[first.token], some_rows(5, 1)[0]])
        verdict = judge_rows(target, rows, [first, second], lambda token: False)
        tokens = list(verdict.tokens)
        if len(tokens) == 1:  # the second token is drawn in the next step
            tokens.append(judge_rows(target, seconds[tokens], [], lambda token: False).tokens[0])
        seen.append(tuple(tokens[:2]))
        accepted += verdict.n_accepted >= 1
    assert chi_squared_p(count(seen), expected) > 0.01
    stands = np.minimum(p, softmax(q_first, temperature)).sum() if drawn else p[q_first.argmax()]
    assert accepted / DRAWS == pytest.approx(stands, abs=0.015)


def test_takes_each_token_before_the_next_is_judged() -> None:
    """A penalty that forbids repeating a token must see the drafts before."""
    sampler = Sampler(SamplingSettings(temperature=0, presence_penalty=10))
    row = np.arange(N_VOCAB, dtype=np.float32)
    drafts = [Draft(11, Source.NGRAM, 1), Draft(10, Source.NGRAM, 1), Draft(10, Source.NGRAM, 1)]
    taken: list[int] = []

    def take(token: int) -> bool:
        sampler.accept(token)
        taken.append(token)
        return False

    verdict = judge_rows(sampler, np.stack([row] * 4), drafts, take)
    assert verdict.tokens == (11, 10, 9)
    assert (verdict.n_accepted, verdict.n_judged) == (2, 3)
    assert taken == [11, 10, 9]


def test_nothing_comes_after_a_token_that_ends_the_answer() -> None:
    sampler = Sampler(SamplingSettings(temperature=0))
    rows = np.stack([np.arange(N_VOCAB, dtype=np.float32)] * 4)
    drafts = [Draft(11, Source.NGRAM, 1)] * 3
    taken: list[int] = []

    def ends_with_the_second(token: int) -> bool:
        taken.append(token)
        return len(taken) == 2

    verdict = judge_rows(sampler, rows, drafts, ends_with_the_second)
    assert verdict.tokens == (11, 11)
    assert (verdict.n_accepted, verdict.n_judged) == (2, 2)


def test_a_seeds_draws_are_those_of_plain_decoding() -> None:
    rows = some_rows(6, 40)
    sampling = SamplingSettings(temperature=1.1, seed=5, top_p=0.9)
    plain = Sampler(sampling)
    expected = [plain.sample(row) for row in rows]
    sampler, rng, tokens = Sampler(sampling), np.random.default_rng(0), list[int]()
    while len(tokens) < len(rows) - 6:
        right = expected[len(tokens) : len(tokens) + int(rng.integers(0, 5))]
        drafts = [Draft(t if rng.random() < 0.8 else 0, Source.MODEL, 0.5) for t in right]
        part = rows[len(tokens) : len(tokens) + len(drafts) + 1]
        tokens += judge_rows(sampler, part, drafts, lambda token: False).tokens
    assert tokens == expected[: len(tokens)]


def test_bad_logits_are_no_tokens() -> None:
    rows = some_rows(7, 2)
    rows[1] = np.nan
    sampler = Sampler(SamplingSettings(temperature=0))
    taken: list[int] = []
    with pytest.raises(BadLogits):
        judge_rows(
            sampler,
            rows,
            [Draft(int(rows[0].argmax()), Source.NGRAM, 1)],
            lambda token: bool(taken.append(token)),
        )
    assert taken == [int(rows[0].argmax())]
