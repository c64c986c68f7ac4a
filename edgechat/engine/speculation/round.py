"""What a step did, and what all steps of an answer came to."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from edgechat.engine.speculation.proposal import Draft


class Round(msgspec.Struct, frozen=True):
    """What one step did for one sequence."""

    drafts: Sequence[Draft]
    """Those that were verified; empty for a plain step."""
    n_accepted: int
    n_judged: int
    tokens: Sequence[int]
    """What the sequence grew by."""
    seconds: float | None = None
    """Of the step; None where others or a prompt shared it: the modelled time is taken then."""
    draft_s: float = 0.0
    """Seconds of drafting, which came on top."""
    n_computed: int = 0
    """Drafts that were computed in `draft_s`, verified or not."""
    catch_up_s: float = 0.0
    """Seconds in which the draft model first read what had been written without it."""
    rows: int = 0
    """Tokens of other sequences in the same batch."""
    looking_s: float = 0.0
    """Seconds of looking for drafts, deciding and learning, which came on top as well."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation has done for one answer."""

    rounds: int
    """Steps in all, plain ones included."""
    tokens: int
    drafted: int
    accepted: int
    speedup: float
    """Tokens per second over plain decoding's; of a very long answer, in its last part."""
    predicted: float
    """The same, as it was expected before each step."""
    reason: str
    """Why nothing is drafted now; empty while something is."""

    @property
    def tokens_per_step(self) -> float:
        """1 is plain decoding."""
        return self.tokens / self.rounds if self.rounds else 0.0
