"""Where the tokens of a conversation lie in the cache, after evictions made holes in it.

Two coordinates: an *index* counts the conversation's tokens as they were rendered and generated, all of
them; a *position* counts those that the sequence still holds. Prefixes are compared by index, the runtime
is spoken to by position.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Holes:
    """The evicted ranges of one sequence, by index: ascending, and apart from each other."""

    ranges: tuple[Range, ...] = ()

    def __post_init__(self) -> None:
        """Refuse ranges that touch, overlap or are empty.

        Raises:
            ValueError: any of that.
        """
        edges = [edge for span in self.ranges for edge in span]
        if any(a >= b for a, b in pairwise(edges)) or (edges and edges[0] < 0):
            raise ValueError(f"not holes: {self.ranges}")

    @property
    def lost(self) -> int:
        """Tokens in all holes."""
        return sum(stop - start for start, stop in self.ranges)

    def within(self, start: int, stop: int) -> int:
        """Evicted tokens among those of index [start, stop)."""
        return sum(max(0, min(stop, b) - max(start, a)) for a, b in self.ranges)

    def position(self, index: int) -> int:
        """Where token `index` lies; for one in a hole, where the first token after the hole lies."""
        return index - sum(min(index, stop) - start for start, stop in self.ranges if start < index)

    def index(self, position: int) -> int:
        """Which token lies at `position`."""
        index = position
        for start, stop in self.ranges:
            if start > index:
                break
            index += stop - start
        return index

    def evicted(self, ranges: Iterable[Range]) -> "Holes":
        """These holes and those of an eviction, whose ranges are positions before it."""
        new = ((self.index(start), self.index(stop - 1) + 1) for start, stop in ranges)
        joined: list[Range] = []
        for start, stop in sorted([*self.ranges, *new]):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        return Holes(tuple(joined))

    def truncated(self, length: int) -> "Holes":
        """The holes among the first `length` tokens.

        Where `length` lies below the end of the last hole, there is room again for what that hole took:
        better compute the sequence anew than go on with it.
        """
        return Holes(tuple((start, min(stop, length)) for start, stop in self.ranges if start < length))


NONE = Holes()
