"""What the transcript consists of."""

from dataclasses import dataclass
from enum import StrEnum

from edgechat.history import Receipt, SavedMessage, Status
from edgechat.records import Timings

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
    receipt: Receipt | None = None
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
        receipt=message.receipt,
        saved_id=message.id,
    )


def title_of(question: str) -> str:
    """A conversation's title: the beginning of its first question."""
    line = " ".join(question.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"
