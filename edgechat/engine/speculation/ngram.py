"""Where a text's last tokens stood before, found in constant time a token.

Tables of the last position of each context of a few lengths, and from each position a chain to the one
before it in the same place of the table, as in the compressors of the LZ77 family (Deflate, RFC 1951,
section 4). Contexts that share a place are told apart by their tokens; so nothing is stored of a context but
two numbers of four bytes, and a long conversation's index takes 2 MB.

Memory is bounded: where it is full the older half is forgotten. Tokens that the sliding window evicted stay:
their words are still good drafts.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgechat.engine.sequence import common_prefix

if TYPE_CHECKING:
    import numpy.typing as npt

BORDER = -1
"""Between two texts: no context and no draft reaches across."""
ORDERS = (2, 3, 4, 8)
"""Lengths of context that are indexed."""
LONGEST = 32
"""Matches are not measured beyond this."""
PLACES = 32_749
"""Of a table, a prime; contexts share them."""
CHAIN = 64
"""Positions that are looked at for a context: of one that shares its place with a very frequent one, the last
occurrence may be missed."""
_BITS = 21  # of a token id: vocabularies end far below two million
_SHORT = 24
"""Fewer tokens are indexed one by one."""
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Match:
    """The text's last tokens, found earlier."""

    tokens: tuple[int, ...]
    """What followed, never empty."""
    length: int
    """How many of the last tokens are the same there, up to LONGEST."""
    agreed: int | None
    """How many of `tokens` followed the occurrence before that one as well; None: there was none."""
    position: int
    """Where `tokens` stand."""


class _Chains:
    """The occurrences of all contexts of one length, by the position of what followed."""

    __slots__ = ("last", "order", "previous")

    def __init__(self, order: int) -> None:
        self.order = order
        self.last = array("i", [_NOWHERE]) * PLACES  # [place]: the last one's
        self.previous = array("i")  # [position - start]: that of the one before it in the same place


class NGramIndex:
    """Finds the last tokens of a growing text in the text before them.

    Positions count from the text's first token, forgotten or not.
    """

    def __init__(self, orders: Sequence[int] = ORDERS, capacity: int = 65_536) -> None:
        """Index contexts of `orders` tokens.

        Args:
            orders: lengths of context; the longest that matches is used.
            capacity: most tokens whose contexts are remembered, and at least half of them are. One takes four
                bytes, and as many for each order.

        Raises:
            ValueError: no orders, or a capacity that holds none of them.
        """
        self.orders = tuple(sorted(set(orders)))
        if not self.orders or self.orders[0] < 1 or capacity < 4 * self.orders[-1]:
            raise ValueError(f"no index of {orders} in {capacity} tokens")
        self.capacity = capacity
        self._masks = tuple((1 << _BITS * order) - 1 for order in self.orders)
        self._clear(0)

    def _clear(self, start: int) -> None:
        self._start = start  # position of the first token remembered
        self._tokens = array("i")
        self._run = 0  # tokens since the last border
        self._context = 0  # the last tokens, _BITS each
        self._chains = tuple(_Chains(order) for order in self.orders)

    def __len__(self) -> int:
        """Tokens of the whole text, forgotten ones included."""
        return self._start + len(self._tokens)

    @property
    def n_bytes(self) -> int:
        """Memory in use, about."""
        arrays = [self._tokens, *(one for chain in self._chains for one in (chain.last, chain.previous))]
        return sum(one.itemsize * len(one) for one in arrays)

    def append(self, token: int) -> None:
        """The text goes on; BORDER ends it, and another text begins."""
        position = self._start + len(self._tokens)
        run, context = self._run, self._context
        for chain, mask in zip(self._chains, self._masks, strict=True):
            if run < chain.order:  # a context that is not full has no place
                chain.previous.append(_NOWHERE)
                continue
            place = (context & mask) % PLACES
            chain.previous.append(chain.last[place])
            chain.last[place] = position
        self._tokens.append(token)
        self._advance(token)
        if not self._room():
            self._forget(self.capacity // 2)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append all of `tokens`: a long text at once, which takes a fraction of the time."""
        tokens = array("i", tokens)
        if len(tokens) < _SHORT or BORDER in tokens:
            for token in tokens:
                self.append(token)
            return
        while tokens:
            piece = tokens[: self._room()]
            del tokens[: len(piece)]
            self._extend(piece)
            if not self._room():
                self._forget(self.capacity // 2)

    def _extend(self, tokens: "array[int]") -> None:
        """Append tokens without a border that there is room for."""
        before = self.tail(self.orders[-1])
        text = np.array([*before, *tokens], dtype=np.int64)
        first = self._start + len(self._tokens)
        for chain in self._chains:
            # A context that is not full has no place.
            missing = min(len(tokens), max(0, chain.order - self._run))
            chain.previous.extend([_NOWHERE] * missing)
            last, append = chain.last, chain.previous.append
            places = _places(text[: len(text) - 1], chain.order)[len(before) + missing - chain.order :]
            for position, place in enumerate(places, first + missing):
                append(last[place])
                last[place] = position
        self._tokens.extend(tokens)
        for token in tokens[-self.orders[-1] :]:
            self._advance(token)
        self._run += max(0, len(tokens) - self.orders[-1])

    def _room(self) -> int:
        """Tokens that are remembered before some must go."""
        # Contexts reach a little further back than what is remembered of their continuations.
        return self.capacity + self.orders[-1] + LONGEST - len(self._tokens)

    def _advance(self, token: int) -> None:
        """Make `token` the last one of the contexts."""
        if token == BORDER:
            self._run = self._context = 0
            return
        self._run += 1
        self._context = (self._context << _BITS | token) & self._masks[-1]

    def _forget(self, n: int) -> None:
        """The first `n` tokens go; positions before the start end their chains."""
        del self._tokens[:n]
        for chain in self._chains:
            del chain.previous[:n]
        self._start += n

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` tokens: an edited message, an answer that is written again."""
        if length >= len(self):
            return
        if length <= self._start:
            self._clear(length)
            return
        while len(self) > length:
            self._tokens.pop()
            for chain in self._chains:
                before = chain.previous.pop()
                place = self._place_before(len(self._tokens), chain.order)
                if place is not None:
                    chain.last[place] = before
        self._run = self._context = 0
        for token in self._tokens[-self.orders[-1] :]:
            self._advance(token)

    def _place_before(self, stop: int, order: int) -> int | None:
        """Where a table has the context before the `stop`-th token that is remembered."""
        context = self._tokens[max(0, stop - order) : stop]
        if len(context) < order or BORDER in context:
            return None
        return _key(context) % PLACES

    def tail(self, n: int) -> list[int]:
        """The last tokens, at most `n`, back to the last border."""
        n = min(n, self._run, len(self._tokens))
        return self._tokens[len(self._tokens) - n :].tolist()

    def find(self, n: int) -> Match | None:
        """Up to `n` tokens that followed the most recent earlier occurrence of the text's last tokens.

        The longest order that occurs is used. Where the text's end is reached, the draft goes on with
        itself: a text that repeats itself is drafted as repeating on.
        """
        return self.find_after(self.tail(LONGEST), n)

    def find_after(self, tail: Sequence[int], n: int) -> Match | None:
        """As `find`, for another text that ends with `tail`."""
        for chain in reversed(self._chains):
            if len(tail) < chain.order:
                continue
            context = array("i", tail[-chain.order :])
            position = self._latest(chain, context, chain.last[_key(context) % PLACES])
            if position == _NOWHERE:
                continue
            at = position - self._start
            tokens = self._continuation(at, n)
            if tokens:
                agreed = self._agreement(chain, context, at, tokens)
                return Match(tokens, self._measure(at, tail), agreed, position)
        return None

    def _latest(self, chain: _Chains, context: "array[int]", position: int) -> int:
        """The last occurrence of `context` from `position` on down its chain; _NOWHERE: there is none."""
        order, start, tokens = chain.order, self._start, self._tokens
        for _ in range(CHAIN):
            at = position - start
            if at < order:
                break
            if tokens[at - order : at] == context:
                return position
            position = chain.previous[at]
        return _NOWHERE

    def following(self, position: int, n: int) -> tuple[int, ...]:
        """Up to `n` tokens from `position` on; none from where all is forgotten or nothing is yet."""
        at = position - self._start
        return self._continuation(at, n) if 0 <= at < len(self._tokens) else ()

    def _continuation(self, at: int, n: int) -> tuple[int, ...]:
        found = self._tokens[at : at + n]
        period = len(self._tokens) - at
        while len(found) < n:
            found.append(found[len(found) - period])
        return tuple(found[: found.index(BORDER)] if BORDER in found else found)

    def _measure(self, at: int, tail: Sequence[int]) -> int:
        """How many tokens before `at` equal those at the end of `tail`."""
        tokens, end, length = self._tokens, len(tail), 0
        limit = min(at, end)
        while length < limit and tokens[at - 1 - length] == tail[end - 1 - length]:
            length += 1
        return length

    def _agreement(
        self, chain: _Chains, context: "array[int]", at: int, tokens: tuple[int, ...]
    ) -> int | None:
        """How many of `tokens`, which stand at `at`, came after the occurrence before that one as well."""
        earlier = self._latest(chain, context, chain.previous[at])
        if earlier == _NOWHERE:
            return None
        return common_prefix(list(tokens), list(self._continuation(earlier - self._start, len(tokens))))


def _places(text: "npt.NDArray[np.int64]", order: int) -> list[int]:
    """Where a table has each context of `text`, those of the first `order` tokens first."""
    count = len(text) - order + 1
    if count <= 0:
        return []
    total = np.zeros(count, dtype=np.int64)
    for n in range(order):
        total += text[n : n + count] % PLACES * pow(2, _BITS * (order - 1 - n), PLACES)
    found: list[int] = (total % PLACES).tolist()
    return found


def _key(context: Sequence[int]) -> int:
    key = 0
    for token in context:
        key = key << _BITS | token
    return key
