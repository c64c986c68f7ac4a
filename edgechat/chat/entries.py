"""What the transcript consists of, and the prompt that is made of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from edgechat.history import SavedMessage, Status
from edgechat.records import Timings
from models.chat import ChatMessage

TITLE_LENGTH = 60


class Kind(StrEnum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"
    NOTICE = "notice"
    """The app itself. It is not part of the conversation, and not saved."""


class Severity(StrEnum):
    """How much a notice matters."""

    INFORMATION = "information"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message or notice of the transcript."""

    key: int
    """Names the entry for as long as the app runs."""
    kind: Kind
    text: str
    status: Status = Status.COMPLETE
    severity: Severity = Severity.INFORMATION
    model: str = ""
    n_tokens: int = 0
    n_context: int = 0
    timings: Timings | None = None
    saved_id: int | None = None
    """The message's number in the database; None where it isn't saved."""


def from_saved(key: int, message: SavedMessage) -> Entry:
    """A message of the database as an entry."""
    return Entry(
        key=key,
        kind=Kind.USER if message.role == "user" else Kind.ASSISTANT,
        text=message.content,
        status=message.status,
        model=message.model,
        n_tokens=message.n_tokens,
        n_context=message.n_context,
        timings=message.timings,
        saved_id=message.id,
    )


def build_prompt(entries: Iterable[Entry], system_prompt: str) -> tuple[ChatMessage, ...]:
    """The conversation as a chat template wants it: roles alternate, and a person's turn is the last.

    A cut answer counts as far as it came. Questions that were never answered (the engine died, the
    person stopped it before the first word) are joined with the next one.
    """
    messages: list[ChatMessage] = []
    if system_prompt.strip():
        messages.append(ChatMessage("system", system_prompt))
    for entry in entries:
        if entry.kind is Kind.NOTICE or not entry.text.strip():
            continue
        last = messages[-1] if messages else None
        if last is not None and last.role == entry.kind.value:
            messages[-1] = ChatMessage(last.role, f"{last.content}\n\n{entry.text}")
        elif entry.kind is Kind.USER:
            messages.append(ChatMessage("user", entry.text))
        elif last is not None and last.role == "user":
            messages.append(ChatMessage("assistant", entry.text))
        # An answer without a question has no place in a template.
    return tuple(messages)


def title_of(question: str) -> str:
    """A conversation's title: the beginning of its first question."""
    line = " ".join(question.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"
