"""Which drafts of an answer fall: some words do whatever was matched, and others never.

In records of one form the keys come again and the values don't; quotes end where sentences do. So what
became of drafts of a token, and of drafts after a token, tells of the next ones: each has a weight that
moves the log-odds of acceptance, learnt online as in logistic regression (Robbins and Monro 1951). The
weights are of one answer: in the next one other words repeat.
"""

import math

from edgechat.engine.speculation.proposal import Draft

_LEAST = 0.005
"""No draft is surer to stand or to fall."""


class Leaning:
    """Of one answer, for drafts that know the token before them."""

    RATE = 0.5
    """Of the log-odds' weights."""

    def __init__(self) -> None:
        """Nothing is known of any word."""
        self._drafted: dict[int, float] = {}
        self._after: dict[int, float] = {}

    def acceptance(self, draft: Draft, usual: float) -> float:
        """How likely `draft` stands, of whose like the share `usual` does in all texts."""
        if draft.after is None:
            return usual
        weight = self._drafted.get(draft.token, 0.0) + self._after.get(draft.after, 0.0)
        usual = min(max(usual, _LEAST), 1 - _LEAST)
        if not weight:
            return usual
        return 1 / (1 + (1 - usual) / usual * math.exp(-weight))

    def learn(self, draft: Draft, usual: float, stood: bool) -> None:
        """`draft` was compared with the text."""
        if draft.after is None:
            return
        step = self.RATE * (stood - self.acceptance(draft, usual))
        self._drafted[draft.token] = self._drafted.get(draft.token, 0.0) + step
        self._after[draft.after] = self._after.get(draft.after, 0.0) + step
