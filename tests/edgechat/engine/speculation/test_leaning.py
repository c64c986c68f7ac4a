"""Words whose drafts stand, and words whose drafts fall."""

import pytest

from edgechat.engine.speculation.leaning import Leaning
from edgechat.engine.speculation.proposal import Draft, Source


def draft(token: int, after: int | None) -> Draft:
    return Draft(token, Source.NGRAM, 0.7, after=after)


def test_begins_with_what_is_usual() -> None:
    leaning = Leaning()
    for usual in (0.01, 0.3, 0.99):
        assert leaning.acceptance(draft(1, 2), usual) == pytest.approx(usual)


def test_one_step_of_logistic_regression() -> None:
    """At even odds, one that stood moves both weights by RATE / 2."""
    leaning = Leaning()
    leaning.learn(draft(1, 2), 0.5, stood=True)
    step = Leaning.RATE / 2
    sigmoid = {n: 1 / (1 + 2.718281828459045 ** (-n * step)) for n in (0, 1, 2)}
    assert leaning.acceptance(draft(1, 2), 0.5) == pytest.approx(sigmoid[2])
    assert leaning.acceptance(draft(1, 9), 0.5) == pytest.approx(sigmoid[1])
    assert leaning.acceptance(draft(9, 2), 0.5) == pytest.approx(sigmoid[1])
    assert leaning.acceptance(draft(2, 1), 0.5) == pytest.approx(sigmoid[0])
    # Odds are multiplied: 3 to 1 becomes 3 e^(2 step) to 1.
    odds = 3 * 2.718281828459045 ** (2 * step)
    assert leaning.acceptance(draft(1, 2), 0.75) == pytest.approx(odds / (1 + odds))


def test_tells_keys_from_values() -> None:
    """After a colon comes another value each time; after a quotation mark comes the key."""
    leaning, colon, mark, key = Leaning(), 10, 11, 12
    for value in range(100, 120):
        leaning.learn(draft(key, mark), 0.7, stood=True)
        leaning.learn(draft(value, colon), 0.7, stood=False)
    assert leaning.acceptance(draft(key, mark), 0.7) > 0.9
    assert leaning.acceptance(draft(999, colon), 0.7) < 0.2


def test_drafts_that_know_no_token_before_them_are_left_alone() -> None:
    leaning = Leaning()
    for _ in range(20):
        leaning.learn(draft(1, None), 0.7, stood=False)
    assert leaning.acceptance(draft(1, None), 0.7) == 0.7
    assert leaning.acceptance(draft(1, 2), 0.7) == pytest.approx(0.7)


def test_never_certain() -> None:
    leaning = Leaning()
    assert 0 < leaning.acceptance(draft(1, 2), 0.0) < leaning.acceptance(draft(1, 2), 1.0) < 1
