"""An answer under way."""

from dataclasses import dataclass, field

from edgechat.chat.engine import RunningAnswer
from edgechat.chat.entries import Entry
from edgechat.chat.prompt import Prompt
from edgechat.history import Receipt, Status
from edgechat.records import Speculation, Timings


@dataclass(slots=True)
class Answer:
    """What the controller knows of an answer while it grows."""

    running: RunningAnswer
    asked: float
    """When, by the controller's clock."""
    prompt: Prompt
    seed: int | None
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
    refusal: str = ""
    n_pinned: int = 0
    n_lost: int = 0
    about: bool = False
    """`n_lost` is an estimate."""
    window_told: bool = False
    """The engine said what the model doesn't see."""
    window_note: str = ""
    """What the engine said of the window, until it is known whether the transcript shows that by itself."""
    speculation: Speculation | None = None

    @property
    def text(self) -> str:
        """All that has come."""
        return "".join(self.parts)

    @property
    def in_context(self) -> int:
        """Tokens of context in use; until the answer has ended, as far as its tokens were told."""
        return self.n_context or self.n_prompt + self.n_tokens

    @property
    def receipt(self) -> Receipt:
        """How it came about."""
        return Receipt(self.seed, self.n_pinned, self.n_lost, self.speculation, self.about)
