"""The runtime's sequences: which conversation is in which, and how a prompt gets into one.

A conversation's cells are shifted, shared, cut and restored here, and computed anew where the runtime can't
do better. After each call, a slot's tokens are exactly those that its sequence holds.
"""

import logging

from edgechat.engine.eviction import Eviction
from edgechat.engine.memory import Memory
from edgechat.engine.prefix import least_recently_used, place, reusable
from edgechat.engine.saving import Saving
from edgechat.engine.sequence import Slot
from edgechat.engine.states import Key, SavedState, StateStore
from edgechat.engine.turn import Turn
from edgechat.runtimes.base import ContextFull, DecodeFailed, Runtime

_log = logging.getLogger(__name__)


class Cache:
    """The slots of one runtime."""

    def __init__(self, runtime: Runtime, memory: Memory, states: StateStore) -> None:
        """Own all of the runtime's sequences."""
        self.runtime = runtime
        self.slots = [Slot(number) for number in range(runtime.n_sequences)]
        # A layer with a window of its own has let go of what a shift would need to be exact.
        self.shifts = runtime.can.shift and not runtime.info.n_swa
        self.saving = Saving(runtime, self.slots, memory, states)
        self._uses = 0

    # --- the beginning and the end of a turn

    def seat(self, turn: Turn) -> None:
        """Give the turn the sequence where least has to be computed."""
        self.restore(turn)
        own = self._own(turn)
        if own is None or not self._shift_into(turn, own):
            stays = own is not None and own.tokens and turn.carried.ranges and turn.to_evict is None
            self._place(turn, own if stays else None)
        slot = turn.slot
        slot.busy = True
        slot.unsaved = False
        slot.conversation = turn.request.conversation

    def leave(self, turn: Turn) -> Key:
        """The turn has ended; its sequence is kept for the next one. Returns the conversation's key."""
        self._uses += 1
        slot = turn.slot
        key: Key = turn.request.conversation or self._uses
        if slot.number >= 0:
            slot.busy = False
            slot.last_used = self._uses
            slot.owner = key
            slot.unsaved = True
        return key

    def make_room(self) -> bool:
        """Give up the longest unused conversation; False where there is none."""
        slot = least_recently_used(self.slots)
        if slot is not None:
            self._give_up(slot)
        return slot is not None

    def _give_up(self, slot: Slot) -> None:
        self.saving.save(slot)
        self.free(slot)

    def release_idle(self) -> None:
        """Give up all that are not being answered."""
        while self.make_room():
            pass

    def free(self, slot: Slot) -> None:
        """Forget what a slot holds."""
        self.runtime.free(slot.number)
        slot.clear()

    def forget(self, conversation: str) -> None:
        """The conversation was deleted: let go of all that is known of it."""
        for slot in self.slots:
            if slot.owner == conversation and not slot.busy:
                self.free(slot)
        self.saving.states.drop(conversation)

    def roll_back(self, turn: Turn, keep: int) -> bool:
        """Forget drafts that fell; False where all must be computed anew."""
        slot = turn.slot
        if self._cut(slot, keep):
            return True
        slot.busy = True
        slot.conversation = turn.request.conversation
        return False

    # --- eviction

    @property
    def has_idle(self) -> bool:
        """Whether a turn could be seated."""
        return not all(slot.busy for slot in self.slots)

    def slide(self, turn: Turn, eviction: Eviction) -> bool:
        """Evict from a turn's sequence; False where what stays must be computed anew."""
        slot = turn.slot
        shifted = self.shifts and self._shift(slot, eviction)
        if not shifted:
            self._cut(slot, min(eviction.ranges[0][0], len(slot.tokens)))
            slot.busy = True
            slot.conversation = turn.request.conversation
        slot.holes = turn.visible.holes
        return shifted

    def refill(self, turn: Turn, at: int) -> None:
        """From position `at` on a turn sees other tokens than its sequence holds: they are computed anew."""
        slot = turn.slot
        self._cut(slot, min(at, len(slot.tokens)))
        slot.busy = True
        slot.conversation = turn.request.conversation
        slot.holes = turn.visible.holes

    def _shift(self, slot: Slot, eviction: Eviction) -> bool:
        """Evict from the cache, and close the gaps; False where it can't be, and only the head is left."""
        held = len(slot.tokens)
        ranges = [(start, min(stop, held)) for start, stop in eviction.ranges if start < held]
        for start, stop in reversed(ranges):
            try:
                self._evict(slot, start, stop)
            except (ValueError, ContextFull):  # a restored state may lack what a shift would show again
                self._cut(slot, ranges[0][0])
                return False
            del slot.tokens[start:stop]
            slot.tainted = min(slot.tainted, start)
        return True

    def _evict(self, slot: Slot, start: int, stop: int) -> None:
        """Evict one range; a shared head must be copied first, for which idle conversations make room."""
        while True:
            try:
                self.runtime.evict(slot.number, start, stop)
                return
            except ContextFull:
                idle = least_recently_used(one for one in self.slots if one is not slot)
                if idle is None:
                    raise
                self._give_up(idle)

    def _cut(self, slot: Slot, keep: int) -> bool:
        """Forget all of a slot but its first tokens; False where all had to go."""
        if keep == len(slot.tokens):
            return True
        if keep and 0 <= self.runtime.can.rollback < len(slot.tokens) - keep:
            keep = 0
        if keep:
            try:
                self.runtime.truncate(slot.number, keep)
            except ValueError:  # the runtime knows better what it can't take back
                keep = 0
        if not keep:
            self.free(slot)
            return False
        slot.cut(keep)
        return True

    # --- placing

    def _own(self, turn: Turn) -> Slot | None:
        """The idle slot that holds the turn's conversation, less just what was evicted from it before."""
        own = [
            slot
            for slot in self.slots
            if slot.tokens
            and not slot.busy
            and slot.owner == turn.key
            and slot.conversation == turn.request.conversation
            and slot.holes == turn.carried
        ]
        return max(own, key=lambda slot: slot.last_used, default=None)

    def _shift_into(self, turn: Turn, slot: Slot) -> bool:
        """Evict from the conversation's own slot what the turn's prompt has no room for, if that pays."""
        eviction = turn.to_evict
        if eviction is None or not self.shifts:
            return False
        keep = reusable(turn.before_eviction(), slot, self.runtime.can, own=True)
        if keep <= eviction.ranges[0][0]:
            return False
        if not self._cut(slot, keep) or not self._shift(slot, eviction):
            return False
        turn.sit(slot)
        return True

    def _place(self, turn: Turn, own: Slot | None) -> None:
        placement = place(turn.tokens, turn.request.conversation, self.slots, self.runtime.can, own)
        if placement is None:
            raise RuntimeError("no idle sequence for a turn that was admitted")
        slot, keep, parent = placement.slot, placement.keep, placement.parent
        if slot.owner != turn.key and keep < len(slot.tokens):
            self.saving.save(slot)
        if parent is None:
            self._cut(slot, keep)
        else:
            self.free(slot)
            try:
                self.runtime.fork(parent.number, slot.number, keep)
                slot.tokens = parent.tokens[:keep]
            except ValueError:  # the runtime knows better what it can't share
                self.free(slot)
        turn.sit(slot)

    # --- saved states

    def restore(self, turn: Turn) -> None:
        """Bring the turn's conversation back into an idle slot, if that spares enough."""
        state = self.saving.worth_restoring(turn)
        slot = None if state is None else self._target(turn)
        if state is None or slot is None or not self._import(slot, state, turn.key):
            return
        slot.tokens = list(state.tokens)
        slot.conversation = turn.request.conversation
        slot.owner = turn.key
        slot.holes = state.left
        slot.tainted = state.tainted
        slot.unsaved = not self.saving.states.take(turn.key)

    def _target(self, turn: Turn) -> Slot | None:
        """The slot to restore into: the conversation's own, an empty one, or the longest unused one."""
        idle = [slot for slot in self.slots if not slot.busy]
        return min(
            idle,
            key=lambda slot: (not slot.tokens or slot.owner != turn.key, bool(slot.tokens), slot.last_used),
            default=None,
        )

    def _import(self, slot: Slot, state: SavedState, key: Key) -> bool:
        if slot.owner != key:
            self.saving.save(slot)
        self.free(slot)
        while True:
            try:
                self.runtime.import_state(slot.number, state.blob)
            except ContextFull:
                if self.make_room():
                    continue
                return False
            except (ValueError, DecodeFailed) as error:
                _log.warning("ignored a state: %s", error)
                self.saving.states.drop(key)
                self.free(slot)
                return False
            if self.runtime.length(slot.number) == len(state.tokens):
                return True
            _log.warning("ignored a state of another length")
            self.saving.states.drop(key)
            self.free(slot)
            return False
