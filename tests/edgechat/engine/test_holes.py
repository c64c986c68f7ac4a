"""Where tokens are after some before them went, and a filling stands in for these."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.holes import Filling, Holes


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12), st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_holes_follow_the_tokens(evictions: list[tuple[int, int]], total: int) -> None:
    kept = list(range(total))
    holes = Holes()
    for start, n in evictions:
        if start + n > len(kept):
            continue
        holes = holes.evicted([(start, start + n)])
        del kept[start : start + n]
        assert holes.lost == total - len(kept)
        for position, index in enumerate(kept):
            assert holes.index(position) == index
            assert holes.position(index) == position
        for start_, stop in holes.ranges:
            assert not set(range(start_, stop)) & set(kept)


def test_bad_holes_are_refused() -> None:
    for bad in (((3, 3),), ((0, 4), (4, 6)), ((5, 7), (1, 2)), ((-1, 2),)):
        with pytest.raises(ValueError, match="not holes"):
            Holes(bad)


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 59), st.integers(1, 20)), max_size=6),
    st.integers(0, 59),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=400, deadline=None)
def test_positions_and_indexes_beside_a_filling(
    n: int, cuts: list[tuple[int, int]], at: int, n_filling: int, n_later: int
) -> None:
    """Against a list of labels, of which the same is taken and to which the same is added."""
    at = min(at, n - 1)
    labels: list[int] = list(range(n))
    holes = Holes(((at, min(n, at + 3)),))
    labels[at : min(n, at + 3)] = []
    for count, size in enumerate((n_filling, n_later)):
        tokens = tuple(range(-1, -1 - size, -1))
        labels[at : at + holes.n_filled] = tokens
        holes = Holes(holes.ranges, Filling(at, tokens, "x"))
        for start, length in cuts[count::2]:
            first = at + size + start % max(1, len(labels) - at - size)
            stop = min(first + length, len(labels))
            if first < stop:
                holes = holes.evicted([(first, stop)])
                del labels[first:stop]
        assert holes.applied(list(range(n))) == labels
        for position, label in enumerate(labels):
            if label >= 0:
                assert holes.position(label) == position
                assert holes.index(position) == label
        assert len(labels) == n - holes.lost + holes.n_filled


@pytest.mark.parametrize(
    ("ranges", "filling"),
    [
        ((), Filling(0, (1,))),
        (((2, 4),), Filling(3, (1,))),
        (((2, 4),), Filling(-1, (1,))),
        (((2, 4),), Filling(2, ())),
    ],
)
def test_a_filling_needs_a_hole(ranges: tuple[tuple[int, int], ...], filling: Filling) -> None:
    with pytest.raises(ValueError, match="not a filling"):
        Holes(ranges, filling)
