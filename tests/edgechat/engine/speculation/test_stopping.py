"""The stopping rule against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.speculation.stopping import best_length, break_even, worth_another
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
