"""Which conversations' states are saved: what is worth it, and when it is worth bringing one back."""

import logging
from collections.abc import Callable, Iterator, Sequence

from edgechat.engine.memory import Memory, Remembered
from edgechat.engine.sequence import Slot, common_prefix
from edgechat.engine.states import MIN_TOKENS, SavedState, StateStore
from edgechat.engine.turn import Turn
from edgechat.runtimes.base import DecodeFailed, Runtime

_log = logging.getLogger(__name__)

WORTH_RESTORING = 64
"""Tokens that a saved state must spare."""


class Saving:
    """The states of one runtime's slots."""

    def __init__(self, runtime: Runtime, slots: Sequence[Slot], memory: Memory, states: StateStore) -> None:
        """Save to `states`, with what `memory` knows of the conversations."""
        self.states = states
        self._runtime = runtime
        self._slots = slots
        self._memory = memory

    # --- out of a slot

    @property
    def unsaved(self) -> bool:
        """Whether `save_one` has something to do."""
        return self.states.files is not None and next(self._worth_saving(), None) is not None

    def save_one(self) -> None:
        """Save the conversation that was used last, in the background."""
        files = self.states.files
        slot = next(self._worth_saving(), None)
        if files is None or slot is None:
            return
        slot.unsaved = False
        state = self._export(slot)
        if state is not None:
            files.write(state)

    def save_all(self, seconds: float, clock: Callable[[], float]) -> None:
        """Save what is not saved yet, as far as `seconds` allow: the engine ends."""
        end = clock() + seconds
        while self.unsaved and clock() < end:
            self.save_one()
        self.states.flush(max(0.0, end - clock()))

    def save(self, slot: Slot) -> None:
        """Keep a slot's state in memory, where it is of use."""
        if self.states.enabled and _worth(slot):
            slot.unsaved = False
            state = self._export(slot)
            if state is not None:
                self.states.put(slot.owner, state)

    def _worth_saving(self) -> Iterator[Slot]:
        """Idle conversations with a name, the last used first."""
        named = [slot for slot in self._slots if isinstance(slot.owner, str) and slot.owner]
        named = [slot for slot in named if _worth(slot)]
        return iter(sorted(named, key=lambda slot: -slot.last_used))

    def _export(self, slot: Slot) -> SavedState | None:
        """A slot's state; None where it can't be saved."""
        remembered = self._memory.get(slot.owner)
        if remembered is None:
            return None
        try:
            blob = self._runtime.export_state(slot.number)
        except (ValueError, DecodeFailed) as error:
            _log.warning("a state could not be saved: %s", error)
            return None
        state = SavedState(
            conversation=slot.owner if isinstance(slot.owner, str) else "",
            identity=self.states.identity,
            tokens=tuple(slot.tokens),
            segments=remembered.transcript.segments,
            holes=slot.holes.ranges,
            filling=slot.holes.filling,
            tainted=slot.tainted,
            blob=blob,
        )
        return state if state.consistent(self._runtime.tokenizer.n_vocab) else None

    # --- back

    def recall(self, conversation: str) -> Remembered | None:
        """A conversation that was saved."""
        state = self.states.get(conversation) if self.states.enabled else None
        if state is None:
            return None
        remembered = Remembered(conversation, state.transcript, state.left)
        self._memory.put(remembered)
        return remembered

    def worth_restoring(self, turn: Turn) -> SavedState | None:
        """The state of the turn's conversation, if it spares enough beyond what the slots hold."""
        state = self.states.get(turn.key) if self.states.enabled and turn.key else None
        if state is None:
            return None
        tokens = list(state.tokens)
        if state.left == turn.carried:
            spared = common_prefix(turn.before_eviction(), tokens)
        else:
            spared = min(common_prefix(turn.tokens, tokens), state.tainted)
        if 0 <= self._runtime.can.rollback < len(tokens) - spared:
            return None
        held = max(common_prefix(turn.tokens, slot.tokens) for slot in self._slots)
        return state if spared - held >= WORTH_RESTORING else None


def _worth(slot: Slot) -> bool:
    """Whether a slot's state is worth saving."""
    return slot.unsaved and not slot.busy and bool(slot.owner) and len(slot.tokens) >= MIN_TOKENS
