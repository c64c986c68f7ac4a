"""One option for each item: the best there is, and never over the room."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.knapsack import MAX_STATES, Option, choose

options = st.lists(
    st.builds(Option, st.integers(1, 40), st.floats(0, 100, allow_nan=False)), min_size=1, max_size=4
)
instances = st.lists(options, min_size=1, max_size=5)


def total(items: list[list[Option]], picks: list[int]) -> tuple[int, float]:
    """Size and cost."""
    chosen = [one[pick] for one, pick in zip(items, picks, strict=True)]
    return sum(option.size for option in chosen), sum(option.cost for option in chosen)


def brute_force(items: list[list[Option]], room: int) -> float:
    """The least cost of all combinations that fit."""
    found = (total(items, list(picks)) for picks in itertools.product(*(range(len(one)) for one in items)))
    return min(cost for size, cost in found if size <= room)


@given(instances, st.integers(0, 80), st.sampled_from([1, 32, 1152]))
@settings(deadline=None)
def test_it_is_the_best_of_all(items: list[list[Option]], more: int, unit: int) -> None:
    """Of small instances, by trying every combination; whatever unit all sizes share."""
    items = [[Option(option.size * unit, option.cost) for option in one] for one in items]
    room = sum(min(option.size for option in one) for one in items) + more * unit
    size, cost = total(items, choose(items, room))
    assert size <= room
    assert cost == pytest.approx(brute_force(items, room), abs=1e-9)


@given(
    st.lists(
        st.lists(st.builds(Option, st.integers(1, 10**9), st.floats(0, 1)), min_size=1, max_size=6),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 1),
)
@settings(deadline=None, max_examples=50)
def test_the_room_is_kept_at_any_size(items: list[list[Option]], share: float) -> None:
    """Where there are more sizes than can be gone through one by one: close to the best, never over."""
    least = sum(min(option.size for option in one) for one in items)
    most = sum(max(option.size for option in one) for one in items)
    room = least + math.floor(share * (most - least))
    size, cost = total(items, choose(items, room))
    assert size <= room
    # What rounding up to MAX_STATES steps can cost at most: one step for each item.
    less = room - len(items) * -(-(room - least) // MAX_STATES)
    if less >= least and math.prod(map(len, items)) < 20_000:
        assert cost <= brute_force(items, less) + 1e-9


def test_what_does_not_fit_and_what_costs_nothing() -> None:
    """The smallest options are the limit; with all the room in the world each item gets its best."""
    items = [[Option(5, 2.0), Option(9, 1.0)], [Option(7, 0.0)]]
    assert choose(items, 12) == [0, 0]
    assert choose(items, 16) == [1, 0]
    assert choose(items, 10**15) == [1, 0]
    with pytest.raises(ValueError, match="the smallest options take 12, the room is 11"):
        choose(items, 11)
