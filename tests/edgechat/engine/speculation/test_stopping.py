"""The stopping rule against brute force."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.speculation.stopping import STAYS, best_length, best_through, break_even, worth_another
from tests.oracles.speculation import V_0_5B, V_1_5B, filled

ACCEPTANCE = st.lists(st.floats(0.01, 1), min_size=1, max_size=15)


def losses(table: dict[int, float], n: int = 15) -> list[float]:
    return [v - 1 for v in filled(table)[2 : n + 2]]


@given(ACCEPTANCE, st.sampled_from([V_1_5B, V_0_5B]), st.floats(1, 3), st.floats(0, 8))
def test_best_length_is_the_best(
    acceptance: list[float], v: dict[int, float], speed: float, most: float
) -> None:
    standing = [1.0]
    for a in acceptance:
        standing.append(standing[-1] * a)
    k = best_length(standing[1:], losses(v), speed, most)
    values = [0.0] + [
        sum(standing[1 : n + 1]) - speed * losses(v)[n - 1] if losses(v)[n - 1] <= most else float("-inf")
        for n in range(1, len(acceptance) + 1)
    ]
    assert values[k] == max(values)


def worth_by_outcomes(
    acceptance: list[float], losses: list[float], speed: float, rounds: dict[int, int], i: int = 0
) -> float:
    """What drafts i.. are worth, in tokens, by all that can become of rounds of `rounds[i]` of them."""
    n = len(acceptance)
    if i >= n:
        return 0.0
    k = rounds[i]
    total, standing = -speed * (1 + (losses[k - 1] if k else 0.0)), 1.0
    for stood in range(k):
        total += standing * (1 - acceptance[i + stood]) * (stood + 1)  # the next one fell
        standing *= acceptance[i + stood]
    total += standing * (k + 1)
    if i + k < n:  # the target's own token is the next draft
        rest = worth_by_outcomes(acceptance, losses, speed, rounds, i + k + 1)
        total += STAYS * standing * acceptance[i + k] * rest
    return total


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    st.lists(st.floats(0.05, 3), min_size=4, max_size=4),
    st.floats(1, 3),
    st.floats(0, 4),
)
def test_best_through_is_the_best_of_all_plans(
    acceptance: list[float], losses: list[float], speed: float, most: float
) -> None:
    n = len(acceptance)
    lengths = [[k for k in range(n - i + 1) if not k or losses[k - 1] <= most] for i in range(n)]
    plans = [dict(enumerate(plan)) for plan in product(*lengths)]
    values = [worth_by_outcomes(acceptance, losses, speed, plan) for plan in plans]
    k = best_through(acceptance, losses, speed, most)
    with_k = [value for plan, value in zip(plans, values, strict=True) if plan[0] == k]
    assert max(with_k) == pytest.approx(max(values), abs=1e-9)


def test_waits_for_the_word_that_decides() -> None:
    """The first of four is as likely right as wrong, the others follow from it; a batch costs 1.4 whatever
    its length. Now: 0.5 * 4 - 1.4 = 0.6. After a plain step: 0.5 * (3 - 1.4) = 0.8, if they
    are still proposed."""
    acceptance, flat = [0.5, 1.0, 1.0, 1.0], [1.4] * 4
    assert best_through(acceptance, flat, 1.0, 9.0) == 0
    assert best_length([0.5] * 4, flat, 1.0, 9.0) == 4
    assert best_through(acceptance[1:], flat, 1.0, 9.0) == 3
    assert best_through([0.9, 1.0, 1.0, 1.0], flat, 1.0, 9.0) == 4  # 2.2 now, 1.44 then
    assert best_through(acceptance[1:], flat, 1.0, 1.0) == 0  # more than may be lost


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 0.5), st.integers(0, 14), st.floats(1, 2.5))
def test_another_is_worth_it_if_some_longer_draft_is(
    standing: float, a: float, d: float, n: int, speed: float
) -> None:
    table = [loss + d * k for k, loss in enumerate(losses(V_1_5B), start=1)]
    here = table[n - 1] if n else 0.0
    expected = any(
        standing * sum(a**m for m in range(1, j - n + 1)) > speed * (table[j - 1] - here)
        for j in range(n + 1, 16)
    )
    assert worth_another(standing, [a] * (15 - n), table[n:], here, speed) == expected


def test_break_even_of_the_measured_curves() -> None:
    k, a = break_even(losses(V_1_5B, 4))
    assert (k, a) == (1, pytest.approx(0.38, abs=1e-6))
    k, a = break_even(losses(V_0_5B, 4))
    assert k == 1
    assert a == pytest.approx(0.60, abs=1e-6)
    k, a = break_even([1.2, 2.5])  # a batch of two costs more than two steps
    assert a == pytest.approx(1.2)
    k, a = break_even([0.9, 1.0])
    assert (k, a) == (2, pytest.approx((5**0.5 - 1) / 2, abs=1e-6))  # a + a^2 = 1
