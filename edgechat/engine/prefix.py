"""Which sequence a prompt goes to, so that as little of it as possible is computed again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgechat.engine.sequence import Slot, common_prefix
from edgechat.records import Capabilities


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a prompt goes."""

    slot: Slot
    keep: int
    """Tokens at the start of the prompt that needn't be computed."""
    parent: Slot | None = None
    """Where those tokens are, if not in `slot` itself: fork them."""


def place(
    prompt: list[int],
    conversation: str,
    slots: Sequence[Slot],
    can: Capabilities,
    own: Slot | None = None,
) -> Placement | None:
    """The best place for `prompt`; None while every slot is busy.

    In this order: the conversation's own slot; a share of the slot whose tokens agree longest with the
    prompt; an empty slot; the least recently used one. At least the prompt's last token is computed: its
    logits are what the answer starts from.

    Args:
        prompt: tokens, without those that were evicted.
        conversation: its name, if it has one.
        slots: all of them.
        can: what the runtime can do.
        own: a slot in which this very conversation was evicted from; all that it holds is good for it.
    """
    idle = [slot for slot in slots if not slot.busy]
    if not idle:
        return None
    if own is not None:
        return Placement(own, reusable(prompt, own, can, own=True))
    shared = {slot.number: _shared(prompt, slot) for slot in slots}
    named = [slot for slot in idle if conversation and slot.conversation == conversation and slot.tokens]
    if named:
        slot = max(named, key=lambda slot: shared[slot.number])
        return Placement(slot, reusable(prompt, slot, can))
    empty = next((slot for slot in idle if not slot.tokens), None)
    target = empty or min(idle, key=lambda slot: slot.last_used)
    best = max(slots, key=lambda slot: (shared[slot.number], not slot.busy))
    keep = shared[best.number]
    if keep and not best.busy and not _still_wanted(best, conversation, keep):
        target = best
    if keep and target is not best and can.fork:
        return Placement(target, keep, parent=best)
    return Placement(target, reusable(prompt, target, can))


def reusable(prompt: list[int], slot: Slot, can: Capabilities, *, own: bool = False) -> int:
    """How many of the slot's tokens the prompt can go on from; 0 where it can't be rolled back so far."""
    keep = _shared(prompt, slot, own=own)
    rollback = len(slot.tokens) - keep
    return keep if can.rollback < 0 or rollback <= can.rollback else 0


def least_recently_used(slots: Iterable[Slot]) -> Slot | None:
    """The idle slot to give up first, if any holds tokens."""
    held = [slot for slot in slots if slot.tokens and not slot.busy]
    return min(held, key=lambda slot: slot.last_used, default=None)


def _shared(prompt: list[int], slot: Slot, *, own: bool = False) -> int:
    shared = min(common_prefix(prompt, slot.tokens), len(prompt) - 1)
    return shared if own else min(shared, slot.tainted)


def _still_wanted(slot: Slot, conversation: str, keep: int) -> bool:
    """Whether the slot is more than a prefix of this prompt: another conversation will come back to it."""
    if slot.conversation and slot.conversation != conversation:
        return True
    return keep * 2 < len(slot.tokens)
