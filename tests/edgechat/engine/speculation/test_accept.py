"""The acceptance rule gives the target's distribution, exactly: 20,000 draws and Pearson's test."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.speculation.accept import Verdict, acceptance, draw, probability, residual
from edgechat.engine.speculation.proposal import Draft, Source
from tests.oracles.speculation import (
    Sparse,
    chi_squared_p,
    chi_squared_survival,
    count,
    judge_greedily,
    verify,
)

N = 20_000


def sparse(**weights: float) -> Sparse:
    """sparse(t3=1, t5=2): tokens 3 and 5, once and twice as likely."""
    values = np.array(list(weights.values()), dtype=np.float64)
    return Sparse(np.array([int(name[1:]) for name in weights]), values / values.sum())


def random_distribution(
    rng: np.random.Generator, n_vocab: int = 12, size: int = 8, flat: float = 1.0
) -> Sparse:
    ids = rng.permutation(n_vocab)[:size]
    weights = rng.gamma(flat, size=size)
    return Sparse(ids, weights / weights.sum())


P = sparse(t0=0.5, t1=0.25, t2=0.15, t4=0.1)
Q = sparse(t1=0.4, t0=0.2, t3=0.3, t2=0.1)


def test_the_oracle_knows_tables() -> None:
    for x, degrees, p in ((3.841, 1, 0.05), (5.991, 2, 0.05), (16.812, 6, 0.01), (24.725, 11, 0.01)):
        assert chi_squared_survival(x, degrees) == pytest.approx(p, rel=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_one_drawn_draft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = (P, Q) if seed == 0 else (random_distribution(rng), random_distribution(rng, flat=0.5))
    first, accepted = [], 0
    for _ in range(N):
        draft = Draft(draw(q, rng.random()), Source.MODEL, 0.5, q)
        verdict = verify([draft], lambda i, tokens: p, rng.random)
        first.append(verdict.tokens[0])
        accepted += verdict.n_accepted
        assert len(verdict.tokens) == verdict.n_accepted + 1
    assert chi_squared_p(count(first), p.as_dict()) > 0.01
    overlap = sum(min(a, q.as_dict().get(x, 0.0)) for x, a in p.as_dict().items())
    assert acceptance(p, q) == pytest.approx(overlap)
    assert accepted / N == pytest.approx(overlap, abs=4 * (0.25 / N) ** 0.5)


def test_one_chosen_draft_takes_the_random_number_of_plain_decoding() -> None:
    rng = np.random.default_rng(1)
    uniforms = rng.random(N)
    for token in (0, 3):  # likely, and impossible
        accepted = 0
        for u in uniforms:
            verdict = verify([Draft(token, Source.NGRAM, 0.5)], lambda i, tokens: P, iter([u, 0.5]).__next__)
            assert verdict.tokens[0] == draw(P, u)
            accepted += verdict.n_accepted
        assert accepted / N == pytest.approx(probability(P, token), abs=4 * (0.25 / N) ** 0.5)


def conditional(tokens: Sequence[int], salt: int) -> Sparse:
    """A target (or draft) that depends on all tokens before, over three tokens."""
    rng = np.random.default_rng([salt, *tokens])
    weights = rng.gamma(1.0, size=3)
    return Sparse(np.array([2, 0, 1]), weights / weights.sum())


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("n_drafts", [1, 3])
def test_joint_distribution_of_three_tokens(n_drafts: int, chosen: bool) -> None:
    """Rounds are strung together until three tokens are there; their joint distribution is p's."""
    rng = np.random.default_rng([n_drafts, chosen, 7001])
    cache: dict[tuple[int, tuple[int, ...]], Sparse] = {}

    def model(tokens: Sequence[int], salt: int) -> Sparse:
        key = (salt, tuple(tokens))
        if key not in cache:
            cache[key] = conditional(tokens, salt)
        return cache[key]

    texts = []
    for _ in range(N):
        text: list[int] = []
        while len(text) < 3:
            drafts: list[Draft] = []
            for _ in range(n_drafts):
                q = model([*text, *(draft.token for draft in drafts)], 1)
                if chosen:
                    drafts.append(Draft(int(q.ids[q.probabilities.argmax()]), Source.MODEL, 0.5))
                else:
                    drafts.append(Draft(draw(q, rng.random()), Source.MODEL, 0.5, q))
            text += verify(drafts, lambda i, tokens: model([*text, *tokens], 0), rng.random).tokens  # noqa: B023
        texts.append(tuple(text[:3]))
    expected = {
        (a, b, c): model([], 0).as_dict()[a] * model([a], 0).as_dict()[b] * model([a, b], 0).as_dict()[c]
        for a, b, c in itertools.product(range(3), repeat=3)
    }
    assert chi_squared_p(count(texts), expected) > 0.01


def test_penalties_follow_the_accepted_tokens() -> None:
    """The target forbids a token that is already there: no text has one twice, and p is asked lazily."""
    rng = np.random.default_rng(3)
    asked: list[tuple[int, tuple[int, ...]]] = []

    def target(i: int, tokens: Sequence[int]) -> Sparse:
        asked.append((i, tuple(tokens)))
        free = np.array([x for x in range(6) if x not in tokens])
        return Sparse(free, np.full(len(free), 1 / len(free)))

    q = Sparse(np.arange(6), np.full(6, 1 / 6))
    for _ in range(500):
        asked.clear()
        drafts = [Draft(draw(q, rng.random()), Source.MODEL, 0.5, q) for _ in range(4)]
        verdict = verify(drafts, target, rng.random)
        assert len(set(verdict.tokens)) == len(verdict.tokens)
        assert [i for i, _ in asked] == list(range(len(verdict.tokens)))
        assert all(tokens == verdict.tokens[:i] for i, tokens in asked)
        assert verdict.n_judged == min(len(verdict.tokens), 4)


def test_an_end_ends() -> None:
    drafts = [Draft(token, Source.NGRAM, 0.9) for token in (0, 7, 1)]
    script = [sparse(t0=1), sparse(t7=1), sparse(t1=1), sparse(t2=1)]
    verdict = verify(drafts, lambda i, tokens: script[i], lambda: 0.5, ends=lambda token: token == 7)
    assert verdict == Verdict((0, 7), n_accepted=2, n_judged=2)
    assert verify(drafts, lambda i, tokens: script[i], lambda: 0.5) == Verdict((0, 7, 1, 2), 3, 3)
    assert verify([], lambda i, tokens: script[i], lambda: 0.5) == Verdict((0,), 0, 0)

    def is_seven(token: int) -> bool:
        return token == 7

    for drafted, expected in (([0, 7, 1], Verdict((0, 7), 2, 2)), ([0, 5, 1], Verdict((0, 7), 1, 2))):
        assert judge_greedily(drafted, [0, 7, 1, 2], is_seven) == expected


@given(st.lists(st.integers(0, 3), max_size=6), st.data())
@settings(deadline=None)
def test_greedy_is_the_same_both_ways(drafts: list[int], data: st.DataObject) -> None:
    likeliest = data.draw(st.lists(st.integers(0, 3), min_size=len(drafts) + 1, max_size=len(drafts) + 1))
    script = [Sparse(np.array([x]), np.ones(1)) for x in likeliest]
    expected = judge_greedily(drafts, likeliest)
    q = Sparse(np.arange(4), np.full(4, 0.25))
    chosen = [Draft(x, Source.NGRAM, 0.5) for x in drafts]
    drawn = [Draft(x, Source.MODEL, 0.5, q) for x in drafts]
    rng = np.random.default_rng(0)
    assert verify(chosen, lambda i, tokens: script[i], rng.random) == expected
    assert verify(drawn, lambda i, tokens: script[i], rng.random) == expected


def test_residual_by_hand() -> None:
    ids, weights = residual(P, Q)
    assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == pytest.approx(
        {0: 0.3, 1: 0.0, 2: 0.05, 4: 0.1}
    )
    same = residual(P, P)
    assert same[1] is P.probabilities
    assert acceptance(P, P) == 1.0
    assert acceptance(P, sparse(t9=1)) == pytest.approx(0.0)


def test_rounding_never_draws_an_impossible_token() -> None:
    tricky = Sparse(np.array([4, 5, 6]), np.array([0.1, 0.9, 0.0]))
    assert {draw(tricky, u) for u in (0.0, 0.0999, 0.1, 0.5, np.nextafter(1.0, 0.0))} == {4, 5}
    front = Sparse(np.array([4, 5]), np.array([0.0, 1.0]))
    assert draw(front, 0.0) == 5
