"""What the client and the engine's process say to each other.

Each message is a msgspec struct, sent as a frame: four bytes of length (big-endian), then MessagePack.
The host trusts nothing in a frame's size, and neither side ever unpickles.
"""

from typing import Literal

import msgspec

from edgechat.records import (
    FinishReason,
    Grammar,
    LoadSettings,
    ModelInfo,
    SamplingSettings,
    Speculation,
    Timings,
)
from models.chat import ChatMessage

MAX_FRAME_BYTES = 64 * 2**20


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages."""


# --- from the client


class Load(Message, frozen=True):
    """Load a model; the first message, and the only one of its kind. Answered by Loaded or LoadFailed."""

    settings: LoadSettings


class Generate(Message, frozen=True):
    """Answer a prompt: with any number of Prefilled, Delta, Note and Evicted, then Finished or Refused."""

    id: int
    messages: tuple[ChatMessage, ...] = ()
    """A conversation, rendered through the model's chat template; or"""
    prompt: str = ""
    """a text to continue, taken as it is."""
    sampling: SamplingSettings = SamplingSettings()
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    grammar: Grammar | None = None
    """What the answer's text must be."""
    max_tokens: int = 0
    """0: until the model ends its turn, or has said nothing new for long."""
    ignore_eog: bool = False
    """Go on past the end of the turn (benchmarks)."""
    conversation: str = ""
    """Requests of one conversation share its sequence; "" for a request on its own. The same name in another
    run finds the state that was saved: make it unique for good."""
    overflow: Literal["refuse", "window"] = "refuse"
    """What becomes of a prompt that is longer than the whole context: "window" keeps its head and tail."""
    complete: bool = False
    """A model without a chat template continues a person's only message as it is, and no transcript."""
    summarize: bool = False
    """When messages leave the context, the model first sums them up, and the summary stays."""
    summary: str = ""
    """What the model wrote of the first `summarized` messages when they left the context, in an earlier run;
    of use where the engine has no better memory of the conversation."""
    summarized: int = 0


class Cancel(Message, frozen=True):
    """End a request at the next step. Answered by its Finished."""

    id: int


class Forget(Message, frozen=True):
    """A conversation was deleted: let go of all that is known of it, and of its saved state. No answer."""

    conversation: str


class Score(Message, frozen=True):
    """Log-probabilities of a text's own tokens, for perplexity. Answered by Scored... then ScoreDone."""

    id: int
    text: str
    n_ctx: int
    """Tokens in a window."""


class Shutdown(Message, frozen=True):
    """Leave; as does the end of the host's standard input."""


Request = Load | Generate | Cancel | Forget | Score | Shutdown

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


NoteKind = Literal["system_folded", "turns_folded", "no_template", "completion", "window", "summary"]


class Note(Message, frozen=True):
    """Something about this answer that the person should know."""

    id: int
    kind: NoteKind
    text: str


class Evicted(Message, frozen=True):
    """The context was full: the model no longer sees a part of the conversation.

    Also told at the beginning of an answer where a part went before; `n_tokens` is 0 then.
    """

    id: int
    messages: tuple[int, ...]
    """All that it doesn't see any more, as indexes into the request's messages, ascending."""
    cut: tuple[int, ...]
    """Those of which it sees a part; the number of messages stands for the answer itself."""
    n_tokens: int
    """Tokens that went now."""
    n_lost: int
    """Tokens of the conversation that it doesn't see, in all; see `about`."""
    n_pinned: int
    """Tokens at the start that always stay: the system prompt, the first tokens."""
    n_kept: int
    """Tokens of context in use after it, the pinned ones among them."""
    summary: str = ""
    """What the model wrote of what it doesn't see any more, and sees in its place; "" for nothing."""
    about: bool = False
    """`n_lost` is an estimate: a text was so long that its middle was not even tokenized."""


class Summarizing(Message, frozen=True):
    """The model sums up what is about to leave the context; the answer goes on when that is done."""

    id: int


class Finished(Message, frozen=True):
    """The answer is whole."""

    id: int
    reason: FinishReason
    tokens: tuple[int, ...]
    """Ids of the answer's tokens, the one that ended it not among them."""
    timings: Timings
    n_context: int
    """Tokens of context in use."""
    speculation: Speculation | None = None
    """What drafting did for it; None where nothing was to be drafted."""
    n_pinned: int = 0
    """Of those tokens, the ones at the start that always stay: the system prompt, the first tokens."""


class Refused(Message, frozen=True):
    """The request can't be answered; the engine goes on."""

    id: int
    code: int
    error: str
    too_long: bool = False
    """The prompt is longer than the context: with `overflow` "window", its middle would be cut."""


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


Event = (
    Loading
    | Loaded
    | LoadFailed
    | Prefilled
    | Delta
    | Note
    | Evicted
    | Summarizing
    | Finished
    | Refused
    | Scored
    | ScoreDone
)
