"""Drafts from the text's own words: what followed when its last tokens stood there before.

Answers quote: code that is edited, documents that are asked about, JSON whose keys come again. The most
recent earlier occurrence of the last tokens is found in an index, and what followed it is the draft (prompt
lookup, Saxena 2023; the suffix matching of REST, He et al. 2023). That takes microseconds where a draft model
takes milliseconds.
"""

from collections.abc import Iterable

from edgechat.engine.speculation.ngram import LONGEST, NGramIndex
from edgechat.engine.speculation.proposal import Draft, Source

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
