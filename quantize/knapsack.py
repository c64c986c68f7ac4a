"""One option for each item so that the cost is least and the sizes fit: the multiple-choice knapsack.

Solved by dynamic programming over the size, exactly where all sizes are multiples of a unit of which not too
many fill the room. Else sizes are rounded up to a coarser unit, which keeps to the room, and what is left
over goes to whatever gains most by it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_STATES = 2**16


@dataclass(frozen=True, slots=True)
class Option:
    """One way to have an item."""

    size: int
    cost: float


def choose(items: Sequence[Sequence[Option]], room: int) -> list[int]:
    """For each item the number of its option.

    Args:
        items: the options of each, at least one.
        room: for the sum of the sizes.

    Raises:
        ValueError: not even the smallest options fit.
    """
    smallest = [min(option.size for option in options) for options in items]
    free = room - sum(smallest)
    if free < 0:
        raise ValueError(f"the smallest options take {sum(smallest)}, the room is {room}")
    extra = [
        [option.size - least for option in options] for options, least in zip(items, smallest, strict=True)
    ]
    free = min(free, sum(max(sizes) for sizes in extra))
    unit = math.gcd(*(size for sizes in extra for size in sizes)) or 1
    unit *= max(1, -(-free // (unit * MAX_STATES)))
    chosen = _solved(items, extra, unit, free // unit)
    return _filled(items, chosen, room)


def _solved(
    items: Sequence[Sequence[Option]], extra: Sequence[Sequence[int]], unit: int, states: int
) -> list[int]:
    """The dynamic program: `best[s]` is the least cost of the items so far within s units over the least."""
    best = np.zeros(states + 1)
    picked = np.empty((len(items), states + 1), np.uint8)
    for i, (options, sizes) in enumerate(zip(items, extra, strict=True)):
        now = np.full(states + 1, np.inf)
        for number, (option, size) in enumerate(zip(options, sizes, strict=True)):
            units = -(-size // unit)
            if units > states:
                continue
            costs = best[: states + 1 - units] + option.cost
            better = costs < now[units:]
            now[units:][better] = costs[better]
            picked[i, units:][better] = number
        best = now
    chosen = [0] * len(items)
    state = states
    for i in reversed(range(len(items))):
        chosen[i] = int(picked[i, state])
        state -= -(-extra[i][chosen[i]] // unit)
    return chosen


def _filled(items: Sequence[Sequence[Option]], chosen: list[int], room: int) -> list[int]:
    """Take better options as long as one fits."""
    free = room - sum(options[number].size for options, number in zip(items, chosen, strict=True))
    while True:
        best, gain = None, 0.0
        for i, options in enumerate(items):
            now = options[chosen[i]]
            for number, option in enumerate(options):
                more, saved = option.size - now.size, now.cost - option.cost
                if more <= free and saved > 0 and saved / max(more, 1) > gain:
                    best, gain = (i, number, more), saved / max(more, 1)
        if best is None:
            return chosen
        chosen[best[0]] = best[1]
        free -= best[2]
