"""The table of measured costs."""

import math
import random

import msgspec
import pytest

from edgechat.engine.speculation.cost import WIDTHS, CostTable, StepCost, ceiling, measure
from tests.oracles.speculation import V_0_5B, V_1_5B, filled

TABLE = CostTable((1, 2, 4, 8), (0.1, 0.14, 0.24, 0.2))


def test_medians_in_rounds() -> None:
    calls: list[int] = []

    def run(width: int) -> float:
        calls.append(width)
        return {1: 0.01, 2: 0.02, 4: 0.03}[width] * (10 if len(calls) in (1, 5) else 1)

    table = measure(run, (1, 2, 4), seconds=10, repeats=5)
    assert table == CostTable((1, 2, 4), (0.01, 0.02, 0.03))  # the disturbed ones don't show
    assert calls == [1, *[1, 2, 4] * 5]


def test_measuring_keeps_to_its_time() -> None:
    for plain in (0.001, 0.01, 0.05, 0.2, 3.0):
        v = filled(V_1_5B)
        spent = [0.0]

        def run(width: int) -> float:
            spent[0] += v[width] * plain  # noqa: B023
            return v[width] * plain  # noqa: B023

        table = measure(run, seconds=0.8)
        assert table.widths[0] == 1
        assert spent[0] <= max(0.8, 2 * plain) * 1.2
        if plain <= 0.005:
            assert table.widths == tuple(sorted(WIDTHS))
        assert [s / plain for s in table.seconds] == pytest.approx([v[w] for w in table.widths])


def test_jagged_curves_stay_jagged_and_gaps_are_straight() -> None:
    cost = StepCost(TABLE)
    assert [cost(width) for width in (1, 2, 3, 4, 6, 8)] == pytest.approx([0.1, 0.14, 0.19, 0.24, 0.22, 0.2])
    assert cost(16) == pytest.approx(0.4)  # beyond the table: in proportion
    assert ceiling(cost, 7) == pytest.approx(4.0)
    v = {k + 0: x for k, x in enumerate(filled(V_1_5B))}
    assert ceiling(v, 4) == pytest.approx(5 / 2.55)
    assert ceiling(v, 15) == pytest.approx(16 / 6.42)
    assert ceiling(dict(enumerate(filled(V_0_5B))), 15) == pytest.approx(16 / 6.43)


def test_steps_correct_the_table() -> None:
    rng = random.Random(0)
    cost = StepCost(TABLE)
    for _ in range(300):
        for width, true in ((1, 0.1), (4, 0.36)):
            cost.observe(width, true * math.exp(rng.gauss(0, 0.05)))
    assert cost(1) == pytest.approx(0.1, rel=0.1)
    assert cost(4) == pytest.approx(0.36, rel=0.1)
    assert cost(8) / cost(1) == pytest.approx(2.0, rel=0.2)  # not seen: as the table says


def test_a_busy_machine_slows_all_widths() -> None:
    cost = StepCost(TABLE)
    for _ in range(20):
        cost.observe(1, 0.3)
    assert cost(1) == pytest.approx(0.3, rel=0.05)
    for _ in range(400):
        cost.observe(1, 0.3)
    assert cost(4) / cost(1) == pytest.approx(2.4, rel=0.01)


def test_a_known_width_blames_the_machine_and_an_unknown_one_the_table() -> None:
    known, unknown = StepCost(TABLE), StepCost(TABLE)
    for _ in range(50):
        known.observe(1, 0.1)
        known.observe(4, 0.24)
        unknown.observe(1, 0.1)
    for _ in range(10):
        known.observe(4, 0.48)
        unknown.observe(4, 0.48)
    assert known(4) == pytest.approx(0.48, rel=0.05)
    assert known(1) == pytest.approx(0.2, rel=0.2)
    assert unknown(4) == pytest.approx(0.48, rel=0.05)
    assert unknown(1) < 0.16
    # A few plain steps settle it, both ways.
    for _ in range(25):
        known.observe(1, 0.1)
        known.observe(4, 0.48)
        unknown.observe(1, 0.2)
        unknown.observe(4, 0.48)
    assert known(4) / known(1) == pytest.approx(4.8, rel=0.2)
    assert unknown(4) / unknown(1) == pytest.approx(2.4, rel=0.2)


def test_one_lost_step_hardly_counts() -> None:
    cost = StepCost(TABLE)
    for _ in range(30):
        cost.observe(1, 0.1)
    cost.observe(1, 60.0)
    assert cost(1) < 0.14
    before = cost(1)
    cost.observe(1, 0.0)  # a clock that stood still says nothing
    assert cost(1) == before


def test_a_plain_step_is_due_after_many_long_ones() -> None:
    cost = StepCost(TABLE)
    waits = []
    for _ in range(7):
        n = 0
        while not cost.plain_due():
            cost.observe(4, 0.24)
            n += 1
        waits.append(n)
        cost.observe(1, 0.1)
        assert not cost.plain_due()
    assert waits == [4, 8, 16, 32, 64, 128, 128]
    cost.observe(1, 0.3)  # not what was expected: look again soon
    for _ in range(4):
        cost.observe(4, 0.24)
    assert cost.plain_due()
    cost.observe(2, 0.14)
    assert not cost.plain_due(2)  # beside another sequence, a plain step is two tokens wide


def test_tables_are_kept_and_damaged_ones_refused() -> None:
    assert msgspec.json.decode(msgspec.json.encode(TABLE), type=CostTable) == TABLE
    for widths, seconds in (
        ((2, 4), (0.1, 0.2)),
        ((1, 4, 2), (0.1, 0.2, 0.3)),
        ((1, 2), (0.1,)),
        ((1,), (0.0,)),
        ((1,), (float("nan"),)),
        ((), ()),
    ):
        with pytest.raises(ValueError, match="not a table"):
            CostTable(widths, seconds)
