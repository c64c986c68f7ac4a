"""What the controller tells whoever shows the conversation."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from edgechat.chat.entries import Entry
from edgechat.records import Speculation


class State(StrEnum):
    """Where the turn stands."""

    LOADING = "loading"
    """The model is being loaded; questions wait."""
    IDLE = "idle"
    PREFILLING = "prefilling"
    """The model reads the conversation."""
    STREAMING = "streaming"
    STOPPING = "stopping"
    """The person stopped the answer; the engine is at its last step."""
    RESTARTING = "restarting"
    """The engine died and is being started again; questions wait."""
    UNAVAILABLE = "unavailable"
    """The model could not be loaded; a question tries again."""


@dataclass(frozen=True, slots=True)
class ChatStatus:
    """All that a status line shows."""

    state: State = State.LOADING
    model: str = ""
    title: str = ""
    """The conversation's; "" for one that has not begun."""
    progress: float | None = None
    """Of loading or reading, 0 to 1; None while nothing is known."""
    tokens_per_s: float | None = None
    ttft_s: float | None = None
    """Time to first token."""
    n_context: int = 0
    """Tokens of context in use."""
    context_size: int = 0
    """Tokens of context that there are; 0 until the model is loaded."""
    speculation: Speculation | None = None
    """What drafting did for the last answer; None while one is under way."""
    n_pinned: int = 0
    """Of the tokens in use, the ones that always stay; 0 before the first answer."""
    summing_up: bool = False
    """The answer waits for the model to sum up what leaves the context."""
    editing: bool = False
    """The next question takes the place of the last one and its answers, which stay until then."""

    @property
    def busy(self) -> bool:
        """An answer is under way."""
        return self.state in {State.PREFILLING, State.STREAMING, State.STOPPING}


@dataclass(frozen=True, slots=True)
class Reset:
    """Another conversation is shown."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Added:
    """An entry was appended."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Grew:
    """The last answer has more text."""

    key: int
    text: str
    """What was added."""


@dataclass(frozen=True, slots=True)
class Changed:
    """An entry was replaced by one of the same key."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Removed:
    """An entry is gone."""

    key: int


@dataclass(frozen=True, slots=True)
class Unseen:
    """How far the model no longer sees the conversation."""

    key: int | None
    """The last entry that it doesn't see; None where it sees all."""
    n_messages: int = 0
    """How many messages there are up to it."""
    summary: str = ""
    """What the model wrote of them, and sees in their place; "" for nothing."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A question was refused and is not part of the conversation: the person may change it."""

    text: str
    edited: bool = False
    """It was to take the place of the last question, which stays."""


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The status line has news."""

    status: ChatStatus


ChatEvent = Reset | Added | Grew | Changed | Removed | Unseen | GivenBack | StatusChanged


def merged(events: Iterable[ChatEvent]) -> list[ChatEvent]:
    """The same events with neighbouring pieces of one answer joined, and only the last status."""
    result: list[ChatEvent] = []
    status: StatusChanged | None = None
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, StatusChanged):
            status = event
        elif isinstance(event, Grew) and isinstance(last, Grew) and last.key == event.key:
            result[-1] = Grew(event.key, last.text + event.text)
        else:
            result.append(event)
    return [*result, status] if status is not None else result
