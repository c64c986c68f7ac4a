"""How much text and memory a template may still make: what bounds every single call into native code.

A thread can be stopped between two instructions only, so that no one operation may be large. Two rules hold
for each value that a template can lay its hands on: no text is longer than `max_text`, and no container,
written out, is longer than that either, however often it holds one and the same text. So whatever native code
does with one value (print, compare, hash, sort) ends soon. The sum of all that is made is bounded too.
"""

import sys
from collections.abc import ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from models.chat_template.limits import Limits

T = TypeVar("T")

_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_MAX_DEPTH = 100
MAX_BITS = 2**14
"""Of a whole number; far more than Python would print."""
REFERENCE = 8
NEW_ELEMENT = 64
"""Bytes of a small new object and the reference to it."""
_PER_OWN_CHAR = 64
"""Templates copy what they are given a dozen times over; this many bytes for each character are fair."""
_PER_MESSAGE = 256


class OverBudget(Exception):
    """The template makes more than it may."""


class Weight(NamedTuple):
    """What a value comes to when it is written out."""

    chars: int
    items: int
    depth: int


class Budget:
    """What is left for one rendering."""

    def __init__(self, limits: Limits, messages: Sequence[Mapping[str, str]] = ()) -> None:
        own = sum(len(text) for message in messages for text in message.values())
        self.max_text = limits.output_chars + 2 * own + 32 * len(messages)
        self._left = limits.memory_bytes + _PER_OWN_CHAR * (own + _PER_MESSAGE * len(messages))
        self._known: dict[int, Weight] = {}  # of the conversation itself, which outlives the rendering
        for message in messages:
            self._known[id(message)] = self.weigh(message)
        self._known[id(messages)] = self.weigh(messages)

    def spend(self, n_bytes: int) -> None:
        """Account for `n_bytes` that are about to be made.

        Raises:
            OverBudget: there are fewer left.
        """
        self._left -= n_bytes
        if self._left < 0:
            raise OverBudget("it uses too much memory")

    def expect_text(self, n_chars: int) -> None:
        """Make sure that a text of this length may be made.

        Raises:
            OverBudget: it may not.
        """
        if n_chars > self.max_text:
            raise OverBudget(f"it makes a text of more than {self.max_text} characters")

    def made(self, value: T, new_elements: bool = False) -> T:
        """Account for a value that an operation gave. `new_elements`: those of a container are new, too.

        Raises:
            OverBudget: it is too large, or of a kind that templates have no use for.
        """
        if isinstance(value, str):
            self.expect_text(len(value))
            self.spend(sys.getsizeof(value))
        elif isinstance(value, _CONTAINERS):
            self.spend((NEW_ELEMENT if new_elements else REFERENCE) * len(value) + NEW_ELEMENT)
            self.weigh(value)
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise OverBudget("it makes a number of too many digits")
        elif isinstance(value, bytes | bytearray | memoryview):
            raise OverBudget("it makes bytes, which no chat has a use for")
        return value

    def weigh(self, value: Any) -> Weight:
        """What a value comes to, all that it holds included, as often as it holds it.

        Raises:
            OverBudget: more than a text may.
        """
        chars, items, depth = 0, 0, 0
        waiting = [(value, 1)]
        while waiting:
            part, level = waiting.pop()
            items += 1
            if isinstance(part, str):
                chars += len(part)
            elif (known := self._known.get(id(part))) is not None:
                chars, items = chars + known.chars, items + known.items
                depth = max(depth, level + known.depth)
            elif isinstance(part, _CONTAINERS):
                if level > _MAX_DEPTH:
                    raise OverBudget("it nests its values too deep")
                self.expect_text(chars + 2 * (items + len(waiting) + len(part)))
                depth = max(depth, level)
                waiting.extend((inner, level + 1) for inner in part)
                if isinstance(part, dict):
                    waiting.extend((inner, level + 1) for inner in part.values())
            else:
                chars += 8  # numbers, None, and what prints as its name
            self.expect_text(chars)
        return Weight(chars, items, depth)

    def collect(self, values: Iterable[T]) -> Sequence[T]:
        """The values of an iterator as a list that keeps the rules; a list stays as it is.

        Raises:
            OverBudget: they are too many or too large.
        """
        if isinstance(values, str):
            self.spend(NEW_ELEMENT * len(values))
            return list(values)  # type: ignore[arg-type]
        if isinstance(values, list | tuple):
            return values
        collected, chars = [], 0
        for value in values:
            self.spend(REFERENCE)
            chars += self.weigh(value).chars
            self.expect_text(chars)
            collected.append(value)
        return collected


_current: ContextVar[Budget] = ContextVar("chat_template_budget")


def current() -> Budget:
    """The budget of the rendering that this thread is at."""
    return _current.get()


def begin(budget: Budget) -> None:
    """Make `budget` this thread's own, which is a thread for this one rendering."""
    _current.set(budget)
