"""Which running answers get drafts in a step, and how many there is room for."""

from collections.abc import Sequence

from edgechat.engine.condensing import Condensing
from edgechat.engine.drafting import Drafter
from edgechat.engine.sliding import Sliding
from edgechat.engine.turn import Turn

CROWDED_STEPS = 32
"""Steps without drafts after one for whose drafts the cache had no room."""


class Rounds:
    """Hands out a step's room for drafts."""

    def __init__(self, drafter: Drafter, sliding: Sliding, n_batch: int) -> None:
        """Ask `drafter`, for batches of at most `n_batch` tokens."""
        self.drafter = drafter
        self._sliding = sliding
        self._n_batch = n_batch
        self._crowded = 0
        """Steps without drafts, for which there was no room."""

    def draft(self, active: Sequence[Turn]) -> None:
        """Ask for the tokens that this step is to verify. Beside prompts there are none: their steps are
        long enough."""
        if self._crowded or not all(turn.answering for turn in active):
            self._crowded = max(0, self._crowded - 1)
            return
        room, rows = self._n_batch - len(active), len(active) - 1
        for turn in active:
            if isinstance(turn, Condensing):
                continue
            # A round may not pass the point where plain decoding would evict.
            most = min(room, self._sliding.room(turn.visible))
            if turn.request.max_tokens:
                most = min(most, turn.request.max_tokens - turn.n_answer - 1)
            turn.drafts = self.drafter.propose(turn, most, rows)
            room -= len(turn.drafts)
            rows += len(turn.drafts)

    def withdraw(self, active: Sequence[Turn]) -> bool:
        """There is no room for the drafts: do without for a while. False where there are none."""
        drafted = [turn for turn in active if turn.drafts]
        for turn in drafted:
            turn.drafts = ()
        if drafted:
            self.drafter.withdrawn(drafted)
            self._crowded = CROWDED_STEPS
        return bool(drafted)
