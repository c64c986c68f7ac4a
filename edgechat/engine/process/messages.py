"""What the client and the engine's process say to each other.

Each message is a msgspec struct, sent as a frame: four bytes of length (big-endian), then MessagePack.
The host trusts nothing in a frame's size, and neither side ever unpickles.
"""

from typing import Literal

import msgspec

from edgechat.records import FinishReason, LoadSettings, ModelInfo, SamplingSettings, Timings
from models.chat import ChatMessage

MAX_FRAME_BYTES = 64 * 2**20


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages."""


# --- from the client


class Load(Message, frozen=True):
    """Load a model; the first message, and the only one of its kind. Answered by Loaded or LoadFailed."""

    settings: LoadSettings


class Generate(Message, frozen=True):
    """Answer a prompt. Answered by any number of Prefilled, Delta and Note, then Finished or Refused."""

    id: int
    messages: tuple[ChatMessage, ...] = ()
    """A conversation, rendered through the model's chat template; or"""
    prompt: str = ""
    """a text to continue, taken as it is."""
    sampling: SamplingSettings = SamplingSettings()
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    max_tokens: int = 0
    """0: until the model ends its turn or the context is full."""
    ignore_eog: bool = False
    """Go on past the end of the turn (benchmarks)."""
    conversation: str = ""
    """Requests of one conversation share its sequence; "" for a request on its own."""


class Cancel(Message, frozen=True):
    """End a request at the next step. Answered by its Finished."""

    id: int


class Score(Message, frozen=True):
    """Log-probabilities of a text's own tokens, for perplexity. Answered by Scored... then ScoreDone."""

    id: int
    text: str
    n_ctx: int
    """Tokens in a window."""


class Shutdown(Message, frozen=True):
    """Leave; as does the end of the host's standard input."""


Request = Load | Generate | Cancel | Score | Shutdown

# --- from the host


class Loading(Message, frozen=True):
    """How far loading has come, 0 to 1."""

    progress: float


class Loaded(Message, frozen=True):
    """The model is ready."""

    info: ModelInfo
    load_s: float
    notes: tuple[str, ...] = ()
    """What the person should know: a fall-back to the CPU, a base model without a template, ..."""


class LoadFailed(Message, frozen=True):
    """The model could not be loaded; the host ends after it."""

    code: int
    """The exit code of the error, from edgechat.errors."""
    error: str


class Prefilled(Message, frozen=True):
    """How far the prompt has come."""

    id: int
    done: int
    total: int
    cached: int


class Delta(Message, frozen=True):
    """More of the answer."""

    id: int
    text: str
    n_tokens: int
    """Tokens of the answer so far."""


NoteKind = Literal["system_folded", "turns_folded", "no_template", "window"]


class Note(Message, frozen=True):
    """Something about this answer that the person should know."""

    id: int
    kind: NoteKind
    text: str


class Finished(Message, frozen=True):
    """The answer is whole."""

    id: int
    reason: FinishReason
    tokens: tuple[int, ...]
    """Ids of the answer's tokens, the one that ended it not among them."""
    timings: Timings
    n_context: int
    """Tokens of context in use."""


class Refused(Message, frozen=True):
    """The request can't be answered; the engine goes on."""

    id: int
    code: int
    error: str


class Scored(Message, frozen=True):
    """One window of a Score."""

    id: int
    done: int
    total: int
    nll: float
    """Sum of the negative log-likelihoods (nats) of the scored tokens of this window."""
    nll2: float
    """Sum of their squares, for the standard error."""
    n_tokens: int


class ScoreDone(Message, frozen=True):
    """The text is scored."""

    id: int
    n_text_tokens: int


Event = Loading | Loaded | LoadFailed | Prefilled | Delta | Note | Finished | Refused | Scored | ScoreDone
