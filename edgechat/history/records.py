"""What a saved conversation consists of."""

from enum import StrEnum

import msgspec

from edgechat.records import Speculation, Timings
from models.chat import Role


class Status(StrEnum):
    """How far a message has come."""

    PARTIAL = "partial"
    """Being written; or the app was killed while it was."""
    COMPLETE = "complete"
    """Whole."""
    STOPPED = "stopped"
    """The person stopped it."""
    LENGTH = "length"
    """Cut at the limit on tokens or at the end of the context."""
    FAILED = "failed"
    """The engine died before it was whole."""


class Receipt(msgspec.Struct, frozen=True):
    """How an answer came about, beside its timings."""

    seed: int | None = None
    """The same seed, model and conversation give the same answer."""
    n_pinned: int = 0
    """Tokens at the start of the context that always stay; 0 where nothing had to go yet."""
    n_lost: int = 0
    """Tokens of the conversation that the model didn't see any more at its end."""
    speculation: Speculation | None = None
    about: bool = False
    """`n_lost` is an estimate."""


class SavedMessage(msgspec.Struct, frozen=True):
    """One message, as it is in the database."""

    id: int
    conversation_id: int
    role: Role
    content: str
    status: Status
    model: str
    """The model that wrote it; "" for the person's messages."""
    created: float
    """Seconds since the epoch."""
    n_tokens: int = 0
    """Tokens of the answer."""
    n_context: int = 0
    """Tokens of context in use after it."""
    timings: Timings | None = None
    receipt: Receipt | None = None


class Conversation(msgspec.Struct, frozen=True):
    """One conversation, without its messages."""

    id: int
    title: str
    model: str
    system_prompt: str | None
    """None for the model's own; "" for none at all."""
    created: float
    updated: float
    n_messages: int = 0
    unseen_until: int = 0
    """Number of the last message that the model no longer sees; 0 where it sees all."""
    model_path: str = ""
    """The model's file; "" in conversations that an older edgechat began."""
    summary: str = ""
    """What the model wrote of the messages up to `unseen_until`; "" for nothing."""


class Found(msgspec.Struct, frozen=True):
    """A conversation that a search found."""

    conversation: Conversation
    excerpt: str = ""
    """Text around the match; "" where the title matched, or nothing was searched for."""
