"""What the engine remembers of conversations besides the cache: their tokens, and what was evicted."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from edgechat.engine.holes import NONE, Holes
from edgechat.engine.sequence import Transcript, common_prefix
from models.chat import ChatMessage

MAX_CONVERSATIONS = 64
"""Conversations that are remembered, whether or not the cache still holds them."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A conversation, as it was when its last answer ended."""

    key: str | int
    transcript: Transcript
    holes: Holes = NONE
    messages: tuple[ChatMessage, ...] = ()
    ends: tuple[int | None, ...] = ()
    """Where each of `messages` ends, if that was needed."""
    text: str = ""
    """What they were rendered as, without a BOS that was added."""

    def carried(self, tokens: list[int]) -> Holes:
        """What of a new prompt's `tokens` is already evicted.

        Nothing, where the prompt differs before the end of what went: there is room for it again.
        """
        if not self.holes.ranges:
            return self.holes
        end = self.holes.ranges[-1][1]
        return self.holes if common_prefix(tokens, self.transcript.tokens) >= end else NONE

    def known_ends(self, messages: tuple[ChatMessage, ...], text: str) -> tuple[int | None, ...]:
        """Where the first of `messages`, rendered as `text`, end, as far as they are the same as before."""
        same = zip(self.messages, messages, self.ends, strict=False)
        count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same))
        while count and ((end := self.ends[count - 1]) is None or not text.startswith(self.text[:end])):
            count -= 1
        return self.ends[:count]


class Memory:
    """The last conversations; the longest unused one is forgotten first."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[str | int, Remembered] = OrderedDict()

    def __iter__(self) -> Iterator[Remembered]:
        yield from self._conversations.values()

    def get(self, key: str | int) -> Remembered | None:
        """The conversation of this name."""
        return self._conversations.get(key)

    def put(self, remembered: Remembered) -> None:
        """Remember a conversation; an earlier one of the same key is replaced."""
        self._conversations[remembered.key] = remembered
        self._conversations.move_to_end(remembered.key)
        if len(self._conversations) > MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)

    def drop(self, key: str | int) -> None:
        """Forget a conversation."""
        self._conversations.pop(key, None)

    def closest(self, text: str, piece: Callable[[int], bytes]) -> Remembered | None:
        """The conversation that agrees longest with `text`; None where none does."""
        best, longest = None, 0
        for remembered in self:
            length = remembered.transcript.agreed(text, piece).n_characters
            if length > longest:
                best, longest = remembered, length
        return best
