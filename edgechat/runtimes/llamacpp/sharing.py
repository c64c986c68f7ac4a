"""Which sequences hold the same cells of the cache, and how many of them.

llama.cpp's fork is free because the child's tokens are the parent's very cells. Moving a cell to another
position then moves it for both, so whoever shifts must know what is shared. Sharing is always of a prefix.
"""


class Sharing:
    """Pairs of sequences, with the length of the prefix whose cells both hold."""

    def __init__(self) -> None:
        """Start with nothing shared."""
        self._pairs: dict[frozenset[int], int] = {}

    def fork(self, parent: int, child: int, length: int) -> None:
        """`child`, until now empty, holds the first `length` cells of `parent`."""
        for pair, shared in list(self._pairs.items()):
            if parent in pair:
                (other,) = pair - {parent}
                self._set(other, child, min(shared, length))
        self._set(parent, child, length)

    def truncate(self, sequence: int, length: int) -> None:
        """`sequence` let go of all its cells after the first `length`."""
        for pair, shared in list(self._pairs.items()):
            if sequence in pair:
                (other,) = pair - {sequence}
                self._set(sequence, other, min(shared, length))

    def free(self, sequence: int) -> None:
        """`sequence` let go of all its cells."""
        self.truncate(sequence, 0)

    def shared(self, sequence: int) -> int:
        """Length of the longest prefix that `sequence` shares with any other."""
        return max((shared for pair, shared in self._pairs.items() if sequence in pair), default=0)

    def _set(self, one: int, other: int, length: int) -> None:
        pair = frozenset((one, other))
        if length > 0:
            self._pairs[pair] = length
        else:
            self._pairs.pop(pair, None)
