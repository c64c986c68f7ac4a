"""Where the tokens of a conversation lie in the cache, after evictions made holes in it.

Two coordinates: an *index* counts the conversation's tokens as they were rendered and generated, all of
them; a *position* counts those that the sequence holds. Prefixes are compared by index, the runtime is
spoken to by position. What went may be stood in for by a *filling*, which has positions and no indexes: a
summary that the model wrote.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Filling:
    """Tokens that stand in for what went."""

    at: int
    """They lie right before the token of this index; nothing before it is ever evicted."""
    tokens: tuple[int, ...]
    text: str = ""
    """What they say, without the words around it."""

    @property
    def stop(self) -> int:
        """The position behind them."""
        return self.at + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Holes:
    """The evicted ranges of one sequence, by index: ascending, and apart from each other."""

    ranges: tuple[Range, ...] = ()
    filling: Filling | None = None

    def __post_init__(self) -> None:
        """Refuse ranges that touch, overlap or are empty, and a filling where nothing went.

        Raises:
            ValueError: any of that.
        """
        edges = [edge for span in self.ranges for edge in span]
        if any(a >= b for a, b in pairwise(edges)) or (edges and edges[0] < 0):
            raise ValueError(f"not holes: {self.ranges}")
        filling = self.filling
        if filling is not None and (not filling.tokens or not edges or not 0 <= filling.at <= edges[0]):
            raise ValueError(f"not a filling of {self.ranges}: {filling}")

    @property
    def lost(self) -> int:
        """Tokens in all holes."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def n_filled(self) -> int:
        """Tokens that stand in for them."""
        return 0 if self.filling is None else len(self.filling.tokens)

    def within(self, start: int, stop: int) -> int:
        """Evicted tokens among those of index [start, stop)."""
        return sum(max(0, min(stop, b) - max(start, a)) for a, b in self.ranges)

    def position(self, index: int) -> int:
        """Where token `index` lies; for one in a hole, where the first token after the hole lies."""
        filled = 0 if self.filling is None or index < self.filling.at else len(self.filling.tokens)
        return index - sum(min(index, stop) - start for start, stop in self.ranges if start < index) + filled

    def index(self, position: int) -> int:
        """Which token lies at `position`; for one of the filling, the first token that isn't evicted after
        it."""
        index = position
        if self.filling is not None and position > self.filling.at:
            index = max(self.filling.at, position - len(self.filling.tokens))
        for start, stop in self.ranges:
            if start > index:
                break
            index += stop - start
        return index

    def evicted(self, ranges: Iterable[Range]) -> "Holes":
        """These holes and those of an eviction, whose ranges are positions before it.

        None of them may be the filling's.
        """
        new = ((self.index(start), self.index(stop - 1) + 1) for start, stop in ranges)
        joined: list[Range] = []
        for start, stop in sorted([*self.ranges, *new]):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        return Holes(tuple(joined), self.filling)

    def applied(self, tokens: Sequence[int]) -> list[int]:
        """What is left of a conversation's `tokens`, by position."""
        left = list(tokens)
        remove(left, self.ranges)
        if self.filling is not None:
            left[self.filling.at : self.filling.at] = self.filling.tokens
        return left


NONE = Holes()


def remove(tokens: list[int], ranges: Sequence[Range]) -> None:
    """Delete `ranges`, which ascend, from `tokens`."""
    for start, stop in reversed(ranges):
        del tokens[start:stop]
