"""Drafts from the text's own words: what followed when its last tokens stood there before.

Answers quote: code that is edited, documents that are asked about, JSON whose keys come again. A hash index
finds the most recent earlier occurrence of the last n tokens, for a few n, in constant time a token; what
followed it is the draft (prompt lookup, Saxena 2023; the suffix matching of REST, He et al. 2023). The index
costs microseconds where a draft model costs milliseconds.

Memory is bounded by keeping two generations: when the young one is full it becomes the old one, and what
was old is forgotten at once. Tokens that the sliding window evicted stay: their words are still good drafts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgechat.engine.speculation.proposal import Draft, Source

BORDER = -1
"""Between two texts: no context and no draft reaches across."""
ORDERS = (2, 3, 4, 8)
"""Lengths of context that are indexed."""
LONGEST = 32
"""Matches are not measured beyond this."""
_BITS = 21  # of a token id: vocabularies end far below two million
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Match:
    """The text's last tokens, found earlier."""

    tokens: tuple[int, ...]
    """What followed, never empty."""
    length: int
    """How many of the last tokens are the same there, up to LONGEST."""
    agrees: bool | None
    """Whether the occurrence before that one was followed by the same token; None: there was none."""
    position: int
    """Where `tokens` stand."""


class _Generation:
    """The contexts whose continuations lie in [start, start + n)."""

    __slots__ = ("previous", "start", "tables")

    def __init__(self, start: int, n_orders: int) -> None:
        self.start = start
        self.tables: list[dict[int | None, int]] = [{} for _ in range(n_orders)]  # context -> continuation
        self.previous: list[list[int]] = [
            [] for _ in range(n_orders)
        ]  # [continuation - start]: the one before

    def __len__(self) -> int:
        return len(self.previous[0])


class NGramIndex:
    """Finds the last tokens of a growing text in the text before them.

    Positions count from the text's first token, forgotten or not.
    """

    def __init__(self, orders: Sequence[int] = ORDERS, capacity: int = 65_536) -> None:
        """Index contexts of `orders` tokens.

        Args:
            orders: lengths of context; the longest that matches is used.
            capacity: most tokens that are remembered, and at least half of them are. One takes about
                0.1 kB for each order.

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
        self._tokens: list[int] = []
        self._run = 0  # tokens since the last border
        self._context = 0  # the last tokens, _BITS each
        self._keys: list[int | None] = [None for _ in self.orders]
        self._old = _Generation(start, len(self.orders))
        self._young = _Generation(start, len(self.orders))

    def __len__(self) -> int:
        """Tokens of the whole text, forgotten ones included."""
        return self._start + len(self._tokens)

    def append(self, token: int) -> None:
        """The text goes on; BORDER ends it, and another text begins."""
        young = self._young
        position = self._start + len(self._tokens)
        for table, previous, key in zip(young.tables, young.previous, self._keys, strict=False):
            previous.append(table.get(key, _NOWHERE))
            table[key] = position
        self._tokens.append(token)
        self._advance(token)
        if len(young.previous[0]) * 2 >= self.capacity:
            self._forget()

    def extend(self, tokens: Iterable[int]) -> None:
        """Append all of `tokens`."""
        for token in tokens:
            self.append(token)

    def _advance(self, token: int) -> None:
        """Make `token` the last one of the contexts."""
        if token == BORDER:
            self._run, self._context = 0, 0
            self._keys = [None for _ in self.orders]
            return
        self._run = run = self._run + 1
        self._context = context = (self._context << _BITS | token) & self._masks[-1]
        if run >= self.orders[-1]:
            self._keys = [context & mask for mask in self._masks]
        else:  # a context that is not full has no key
            self._keys = [
                context & mask if run >= order else None
                for order, mask in zip(self.orders, self._masks, strict=True)
            ]

    def _forget(self) -> None:
        """The young generation becomes the old one."""
        n_forgotten = self._young.start - self._start
        self._old = self._young
        # Contexts of the old generation reach a little further back than its continuations.
        keep = min(self.orders[-1] + LONGEST, n_forgotten)
        del self._tokens[: n_forgotten - keep]
        self._start += n_forgotten - keep
        self._young = _Generation(len(self), len(self.orders))

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` tokens: an edited message, an answer that is written again."""
        if length >= len(self):
            return
        if length <= self._old.start:
            self._clear(length)
            return
        if length < self._young.start:
            del self._tokens[self._young.start - self._start :]
            self._young = self._old
            self._old = _Generation(self._young.start, len(self.orders))
        young = self._young
        while len(self) > length:
            self._tokens.pop()
            position = len(self)
            for order, table, previous in zip(self.orders, young.tables, young.previous, strict=True):
                key = self._key_before(position, order)
                before = previous.pop()
                if before == _NOWHERE:
                    del table[key]
                else:
                    table[key] = before
        self._rewind()

    def _key_before(self, position: int, order: int) -> int | None:
        stop = position - self._start
        if stop < order:
            return None
        context = self._tokens[stop - order : stop]
        if BORDER in context:
            return None
        key = 0
        for token in context:
            key = key << _BITS | token
        return key

    def _rewind(self) -> None:
        """Set up the contexts again from the last tokens."""
        self._run, self._context = 0, 0
        self._keys = [None for _ in self.orders]
        for token in self._tokens[-self.orders[-1] :]:
            self._advance(token)

    def tail(self, n: int) -> list[int]:
        """The last tokens, at most `n`, back to the last border."""
        n = min(n, self._run, len(self._tokens))
        return self._tokens[len(self._tokens) - n :]

    def find(self, n: int) -> Match | None:
        """Up to `n` tokens that followed the most recent earlier occurrence of the text's last tokens.

        The longest order that occurs is used. Where the text's end is reached, the draft goes on with
        itself: a text that repeats itself is drafted as repeating on.
        """
        return self._find(self._keys, n, self.tail(LONGEST))

    def find_after(self, tail: Sequence[int], n: int) -> Match | None:
        """As `find`, for another text that ends with `tail`."""
        context = 0
        for token in tail[-self.orders[-1] :]:
            context = context << _BITS | token
        keys = [
            context & mask if len(tail) >= order else None
            for order, mask in zip(self.orders, self._masks, strict=True)
        ]
        return self._find(keys, n, tail)

    def _find(self, keys: Sequence[int | None], n: int, tail: Sequence[int]) -> Match | None:
        for i in range(len(keys) - 1, -1, -1):
            key = keys[i]
            if key is None:
                continue
            position = self._young.tables[i].get(key)
            if position is None:
                position = self._old.tables[i].get(key)
                if position is None:
                    continue
            at = position - self._start
            tokens = self._continuation(at, n)
            if tokens:
                return Match(tokens, self._measure(at, tail), self._agreement(i, key, position), position)
        return None

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

    def _agreement(self, i: int, key: int, position: int) -> bool | None:
        """Whether the occurrence before the one at `position` had the same token after it."""
        if position >= self._young.start:
            earlier = self._young.previous[i][position - self._young.start]
            if earlier == _NOWHERE:
                earlier = self._old.tables[i].get(key, _NOWHERE)
        else:
            earlier = self._old.previous[i][position - self._old.start]
        if earlier < self._start:
            return None
        return self._tokens[earlier - self._start] == self._tokens[position - self._start]


# How often the next token is right when so many of the last ones were found earlier, before anything was
# learnt: (at least so many, how often).
_BY_LENGTH = ((32, 0.96), (16, 0.92), (8, 0.85), (5, 0.72), (4, 0.62), (3, 0.5), (2, 0.35), (0, 0.2))


def confidence(length: int, agrees: bool | None) -> float:
    """How sure a match is, 0 to 1; `Calibration` learns what it means."""
    sure = next(often for least, often in _BY_LENGTH if length >= least)
    if agrees is None:
        return sure
    return 1 - (1 - sure) * 0.5 if agrees else sure * 0.6


class NGramProposer:
    """Drafts for one conversation, from itself and from earlier ones.

    Where a quote is left and no context matches, the draft goes on behind the tokens that were changed:
    edited code and records of one form differ from what they repeat in single words.
    """

    STRONG = 3
    """A match so long tells where the text is being repeated from."""
    PATIENCE = 6
    """Tokens after the last strong match in which the text may come back to what it repeats."""
    RESUMED = (0.5, 0.7, 0.8)
    """How sure a resumed quote is, before anything was learnt, when so many tokens have confirmed it."""
    SHIFTS = (1, -1, 2, -2, 3)
    """What was changed may have been longer or shorter by so many tokens."""

    def __init__(self, own: NGramIndex | None = None, past: NGramIndex | None = None) -> None:
        """Draft from `own`, which follows this conversation.

        Args:
            own: None: a new one.
            past: earlier conversations, with a BORDER after each; shared, and not changed here.
        """
        self.own = own or NGramIndex()
        self.past = past
        self._quoted = 0  # where the text, aligned token by token with what it repeats, would go on
        self._left = 0  # tokens in which that is still believed
        self._confirmed = 0  # tokens on end that came as that says, since the last strong match

    def extend(self, tokens: Iterable[int]) -> None:
        """The text goes on."""
        for token in tokens:
            if self._left > 0:
                self._align(token)
            self.own.append(token)
            self._quoted += 1
            self._left -= 1

    def _align(self, token: int) -> None:
        """Compare what comes with what is believed to be quoted; shift the belief where it fits near by."""
        for shift in (0, *self.SHIFTS):
            if self.own.following(self._quoted + shift, 1) == (token,):
                self._quoted += shift
                self._confirmed = self._confirmed + 1 if shift == 0 else 1
                return
        self._confirmed = 0

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` tokens."""
        self.own.truncate(length)
        self._left = 0

    def propose(self, n: int) -> list[Draft]:
        """Up to `n` drafts; none where nothing matches."""
        match, source = self.own.find(n), Source.NGRAM
        if match is not None and match.length >= self.STRONG:
            self._quoted, self._left, self._confirmed = match.position, self.PATIENCE, 0
        elif self._left > 0 and (tokens := self.own.following(self._quoted, n)):
            sure = self.RESUMED[min(self._confirmed, len(self.RESUMED) - 1)]
            return [Draft(token, Source.RESUME, sure) for token in tokens]
        if self.past is not None and (match is None or match.length < self.past.orders[-1]):
            other = self.past.find_after(self.own.tail(LONGEST), n)
            if other is not None and (match is None or other.length > match.length):
                match, source = other, Source.PAST
        if match is None:
            return []
        # Each draft that stands makes the match one token longer.
        return [
            Draft(token, source, confidence(match.length + i, match.agrees))
            for i, token in enumerate(match.tokens)
        ]
