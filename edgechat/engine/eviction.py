"""The messages of a conversation as ranges of its tokens, and what goes of them."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens [start, stop) of one message, with all that the template writes around it."""

    message: int
    """Which message of the conversation this is."""
    role: Role
    start: int
    stop: int
    head: int = 0
    """Tokens of the role's header at the start ("<|im_start|>user\\n")."""
    tail: int = 0
    """Tokens that close the message ("<|im_end|>\\n"); 0 while it is being written."""
    pinned: bool = False
    """Never evicted; in the middle of the conversation its whole turn stays."""
    opened: bool = False
    """Its header lies before it, in the pinned head: a template that folds the system prompt into the
    first message, or a header that serves as attention sink."""
    lost: int = 0
    """Tokens of the message that went before."""

    def __post_init__(self) -> None:
        """Refuse what can't be a message.

        Raises:
            ValueError: an empty or impossible range.
        """
        if not 0 <= self.start <= self.stop or not 0 <= self.head + self.tail <= self.stop - self.start:
            raise ValueError(f"not the span of a message: {self!r}")

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Cut:
    """A message that lost some of its tokens, but not all."""

    message: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """What goes. Positions are those before the eviction."""

    ranges: tuple[Range, ...]
    """Ascending and apart; carry them out from the last to the first, so that positions stay true."""
    messages: tuple[int, ...]
    """Messages that are gone, oldest first."""
    cuts: tuple[Cut, ...]
    spans: tuple[Span, ...]
    """The spans afterwards."""

    @property
    def freed(self) -> int:
        """Tokens that go."""
        return sum(stop - start for start, stop in self.ranges)

    def kept(self, length: int) -> tuple[Range, ...]:
        """The ranges that stay of `length` tokens: what a runtime that can't shift computes anew."""
        edges = [0, *(edge for span in self.ranges for edge in span), length]
        return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
