"""The prompt that a conversation makes, and which entries each of its messages came from."""

from collections.abc import Iterable
from dataclasses import dataclass

from edgechat.chat.entries import Entry, Kind
from models.chat import ChatMessage


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as a chat template wants it: roles alternate, and a person's turn is the last."""

    messages: tuple[ChatMessage, ...]
    keys: tuple[tuple[int, ...], ...]
    """The keys of the entries in each message; none in the system prompt."""

    def last_of(self, messages: Iterable[int]) -> int | None:
        """The key of the last entry in any of these messages; None where there is no entry in them.

        Args:
            messages: indexes of messages; what is beyond the end is the answer, and counts as nothing.
        """
        keys = [key for i in messages if i < len(self.keys) for key in self.keys[i]]
        return max(keys, default=None)

    def n_up_to(self, last: int) -> int:
        """How many messages there are up to the entry of key `last`, the system prompt among them."""
        return sum(1 for keys in self.keys if all(key <= last for key in keys))


def build_prompt(entries: Iterable[Entry], system_prompt: str | None) -> Prompt:
    """Make the prompt.

    An empty system prompt is a message too: many templates write one of their own where there is none.
    A cut answer counts as far as it came. Questions that were never answered (the engine died, the
    person stopped it before the first word) are joined with the next one.
    """
    messages: list[ChatMessage] = []
    keys: list[tuple[int, ...]] = []
    if system_prompt is not None:
        messages.append(ChatMessage("system", system_prompt))
        keys.append(())
    for entry in entries:
        if entry.kind is Kind.NOTICE or not entry.text.strip():
            continue
        last = messages[-1] if messages else None
        if last is not None and last.role == entry.kind.value:
            messages[-1] = ChatMessage(last.role, f"{last.content}\n\n{entry.text}")
            keys[-1] = (*keys[-1], entry.key)
        elif entry.kind is Kind.USER or (last is not None and last.role == "user"):
            role = "user" if entry.kind is Kind.USER else "assistant"
            messages.append(ChatMessage(role, entry.text))  # type: ignore[arg-type]
            keys.append((entry.key,))
        # An answer without a question has no place in a template.
    return Prompt(tuple(messages), tuple(keys))
