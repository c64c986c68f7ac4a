"""Drafts from the text's own words: what followed when its last tokens stood there before.

Answers quote: code that is edited, documents that are asked about, JSON whose keys come again. The most
recent earlier occurrence of the last tokens is found in an index, and what followed it is the draft (prompt
lookup, Saxena 2023; the suffix matching of REST, He et al. 2023). That takes microseconds where a draft model
takes milliseconds.
"""

from collections.abc import Iterable, Sequence

from edgechat.engine.speculation.ngram import LONGEST, NGramIndex
from edgechat.engine.speculation.proposal import Draft, Source


def _by_length(*steps: tuple[int, float]) -> tuple[float, ...]:
    """A value for each length up to LONGEST, of (least length, value) from the longest down."""
    return tuple(next(often for least, often in steps if n >= least) for n in range(LONGEST + 1))


# How often the next token was right in answers of two small models to some forty questions, when at least so
# many of the last ones were found earlier: where that was the only time,
_ONCE = _by_length(
    (32, 0.99), (24, 0.975), (16, 0.95), (12, 0.92), (8, 0.88), (6, 0.82), (5, 0.76), (4, 0.72), (3, 0.6),
    (2, 0.5), (0, 0.3),
)  # fmt: skip
# where the same came the time before,
_AGREED = _by_length((32, 0.995), (12, 0.985), (8, 0.97), (5, 0.95), (4, 0.92), (3, 0.8), (2, 0.75), (0, 0.5))
# and where something else did: however long the match, here the text varies.
_DISAGREED = 0.2


def confidence(length: int, agrees: bool | None) -> float:
    """How sure a match is, 0 to 1; `Calibration` learns what it means.

    Args:
        length: tokens that match.
        agrees: whether the same token came the time before; None: there was none.
    """
    if agrees is False:
        return _DISAGREED
    return (_AGREED if agrees else _ONCE)[min(length, LONGEST)]


class NGramProposer:
    """Drafts for one conversation, from itself and from earlier ones.

    Where a quote is left and no context matches, the draft goes on behind the tokens that were changed:
    edited code and records of one form differ from what they repeat in single words.
    """

    STRONG = 3
    """A match so long tells where the text is being repeated from."""
    PATIENCE = 6
    """Tokens after the last strong match in which the text may come back to what it repeats."""
    RESUMED = (0.15, 0.55, 0.7, 0.8)
    """How sure a resumed quote is, as `confidence`, when so many tokens have confirmed it."""
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
        tokens = list(tokens)
        aligned = tokens[: max(0, self._left)]
        for token in aligned:
            self._align(token)
            self.own.append(token)
            self._quoted += 1
        self.own.extend(tokens[len(aligned) :])
        self._quoted += len(tokens) - len(aligned)
        self._left -= len(tokens)

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
            most = len(self.RESUMED) - 1
            sure = [self.RESUMED[min(self._confirmed + i, most)] for i in range(len(tokens))]
            return self._drafts(tokens, Source.RESUME, sure)
        if self.past is not None and (match is None or match.length < self.past.orders[-1]):
            other = self.past.find_after(self.own.tail(LONGEST), n)
            if other is not None and (match is None or other.length > match.length):
                match, source = other, Source.PAST
        if match is None:
            return []
        # Each draft that stands makes the match one token longer. Where the two last times part, what follows
        # is another matter.
        agreed, length = match.agreed, match.length
        agrees = [None if agreed is None or i > agreed else i < agreed for i in range(len(match.tokens))]
        return self._drafts(
            match.tokens, source, [confidence(length + i, same) for i, same in enumerate(agrees)]
        )

    def _drafts(self, tokens: Sequence[int], source: Source, sure: Sequence[float]) -> list[Draft]:
        afters = (*self.own.tail(1), *tokens)
        return [
            Draft(token, source, one, after=after)
            for token, one, after in zip(tokens, sure, afters, strict=False)
        ]
