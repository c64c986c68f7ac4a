"""An answer under way."""

from dataclasses import dataclass, field

from edgechat.chat.engine import RunningAnswer
from edgechat.chat.entries import Entry
from edgechat.history import Status
from edgechat.records import Speculation, Timings


@dataclass(slots=True)
class Answer:
    """What the controller knows of an answer while it grows."""

    running: RunningAnswer
    asked: float
    """When, by the controller's clock."""
    replaced: tuple[Entry, ...] = ()
    """Answers that this one takes the place of, as soon as it has a word."""
    entry: Entry | None = None
    """Its place in the transcript, from the first word on."""
    status: Status = Status.FAILED
    """What it will have been, unless the engine says otherwise."""
    parts: list[str] = field(default_factory=list)
    n_prompt: int = 0
    n_tokens: int = 0
    n_context: int = 0
    first: float = 0.0
    """When its first text came."""
    n_first: int = 0
    """Tokens in its first text."""
    timings: Timings | None = None
    speculation: Speculation | None = None
    refusal: str = ""

    @property
    def text(self) -> str:
        """All that has come."""
        return "".join(self.parts)
