"""One answer, from the engine's start to the last line."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass
from typing import Literal

import msgspec

from edgechat.cli import failures, output
from edgechat.engine.process.answer import Answer
from edgechat.engine.process.client import EngineClient, error_from_code
from edgechat.engine.process.messages import (
    Delta,
    Event,
    Evicted,
    Finished,
    Generate,
    Note,
    Prefilled,
    Refused,
    Summarizing,
)
from edgechat.engine.process.spawn import HostProcess
from edgechat.errors import ExitCode
from edgechat.records import FinishReason, Grammar, LoadSettings, SamplingSettings, Speculation, Timings
from models.chat import ChatMessage

CANCEL_S = 3.0
"""How long a cancelled answer's last word is waited for."""

NO_TIMINGS = Timings(
    load_s=0.0, ttft_s=0.0, prefill_tokens=0, prefill_s=0.0, decode_tokens=0, decode_s=0.0, tokens_per_s=0.0
)


@dataclass(frozen=True, slots=True)
class Asking:
    """What was asked, and how to print the answer."""

    load: LoadSettings
    model: str
    """What the person calls the model."""
    sampling: SamplingSettings
    prompt: str
    system: str | None = None
    """None for the model's own; "" for none at all."""
    raw: bool = False
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    """None: the answer's form is free."""
    overflow: Literal["refuse", "window"] = "refuse"
    summarize: bool = False
    as_json: bool = False
    quiet: bool = False

    def request(self) -> Generate:
        """As the engine takes it."""
        system = () if self.system is None else (ChatMessage("system", self.system),)
        return Generate(
            id=0,
            messages=() if self.raw else (*system, ChatMessage("user", self.prompt)),
            prompt=self.prompt if self.raw else "",
            sampling=self.sampling,
            stop=self.stop,
            grammar=self.grammar,
            max_tokens=self.max_tokens,
            overflow=self.overflow,
            complete=True,
            summarize=self.summarize,
        )


class Unseen(msgspec.Struct, frozen=True):
    """What the model did not see at the end, as the context was full."""

    messages: tuple[int, ...]
    """Whole messages, counted from 0, the system prompt among them."""
    cut: tuple[int, ...]
    """Messages of which it saw a part; the last number is the answer's own."""
    lost_tokens: int
    pinned_tokens: int
    """Tokens at the beginning that stay whatever goes."""
    context_tokens: int
    summary: str = ""
    """What the model wrote of what it does not see, and saw in its place; "" for nothing."""
    about: bool = False
    """`lost_tokens` is an estimate, as the text was too long to count."""


class Drafts(msgspec.Struct, frozen=True):
    """What drafting did for an answer: the engine's `Speculation`."""

    steps: int
    tokens: int
    drafted: int
    accepted: int
    tokens_per_step: float
    speedup: float | None
    """Over plain decoding; None where nothing was drafted."""
    predicted: float | None
    reason: str

    @classmethod
    def of(cls, said: Speculation) -> "Drafts":
        """As the engine says it, without what says nothing of this answer."""
        figures = msgspec.structs.asdict(said)
        if not said.drafted:
            figures |= {"speedup": None, "predicted": None}
        return cls(**figures)


class Failure(msgspec.Struct, frozen=True):
    """What went wrong."""

    code: int
    """The exit code."""
    message: str


class Result(msgspec.Struct):
    """What `--json` prints."""

    text: str = ""
    """Where the answer was cut in the middle of a character, that is left out."""
    tokens: tuple[int, ...] = ()
    """Ids of the answer's tokens, all that the model wrote."""
    finish_reason: FinishReason = FinishReason.CANCELLED
    timings: Timings = NO_TIMINGS
    model: str = ""
    """As `edgechat models ls` names it."""
    title: str = ""
    """What the model calls itself."""
    notes: list[str] = []
    window: Unseen | None = None
    """None where the model saw all."""
    speculation: Drafts | None = None
    """What drafting did; None where nothing was to be drafted."""
    error: Failure | None = None
    """Why the exit code is another than 0: why the answer is not whole, or why there is none."""


class Turn:
    """The state of one run."""

    def __init__(self, asking: Asking) -> None:
        """Nothing is asked yet."""
        self.asking = asking
        self.result = Result(model=asking.model)
        self.answer: Answer | None = None
        self.interrupted = False
        self.heard = False
        """Whether the engine has said anything of the answer."""
        self.status = output.Status(sys.stderr.isatty() and not asking.quiet and not asking.as_json)

    async def run(self, host: HostProcess) -> None:
        """Load, ask, and print as it comes."""
        self.status.show("loading")
        asyncio.get_running_loop().call_later(self.status.DELAY_S, self.status.redraw)
        try:
            client = await EngineClient.start(
                self.asking.load, host=host, on_progress=lambda part: self.status.show(f"loading {part:.0%}")
            )
        except BaseException:
            self.status.clear()
            raise
        try:
            self.result.title = client.info.name
            self.result.timings = msgspec.structs.replace(NO_TIMINGS, load_s=client.load_s)
            for text in client.notes:
                self.note(text)
            self.answer = client.generate(self.asking.request())
            if self.interrupted:
                return
            async for event in self.answer:
                self.heard = True
                self.take(event, client.load_s)
        finally:
            self.status.clear()
            if self.interrupted and not self.heard:  # it may be in the middle of something long
                host.process.kill()
            await client.close()

    def take(self, event: Event, load_s: float) -> None:
        """What the engine says.

        Raises:
            EdgechatError: there is no answer.
        """
        match event:
            case Prefilled():
                self.status.show(f"reading {event.done} of {event.total} tokens")
            case Delta():
                self.write(event.text)
            case Note():
                self.note(event.text)
            case Summarizing() if not self.result.text:  # else the line holds the answer
                self.status.show("summing up what leaves the context")
            case Evicted():
                self.result.window = Unseen(
                    event.messages,
                    event.cut,
                    event.n_lost,
                    event.n_pinned,
                    event.n_kept,
                    event.summary,
                    event.about,
                )
            case Finished():
                self.finish(event, load_s)
            case Refused():
                advice = ", or have its middle cut (--overflow window)" if event.too_long else ""
                raise error_from_code(event.code, event.error + advice)

    def write(self, text: str) -> None:
        """More of the answer."""
        self.status.clear()
        self.result.text += text
        if not self.asking.as_json:
            output.answer(text)

    def note(self, text: str) -> None:
        """Something that the person should know."""
        self.status.clear()
        self.result.notes.append(text)
        if not (self.asking.quiet or self.asking.as_json):
            output.note(text)

    def finish(self, event: Finished, load_s: float) -> None:
        """The answer is whole."""
        self.result.tokens = event.tokens
        self.result.finish_reason = event.reason
        self.result.timings = msgspec.structs.replace(event.timings, load_s=load_s)
        self.result.speculation = None if event.speculation is None else Drafts.of(event.speculation)

    def end(self) -> None:
        """Print what comes after the answer."""
        if self.asking.as_json:
            output.json_object(self.result)
            return
        self.end_line()
        if not self.asking.quiet and self.result.tokens:
            output.note(statistics(self.result))

    def end_line(self) -> None:
        """Leave the cursor at the beginning of a line."""
        if self.result.text and not self.asking.as_json and not self.result.text.endswith("\n"):
            output.answer("\n")


def statistics(result: Result) -> str:
    """One line about an answer."""
    times = result.timings
    parts = [_tokens(len(result.tokens))]
    if times.tokens_per_s:
        parts.append(f"{times.tokens_per_s:.1f} tokens/s")
    drafted = result.speculation
    if drafted is not None and drafted.accepted:
        gain = "" if drafted.speedup is None else f" (×{drafted.speedup:.1f})"
        parts.append(f"{drafted.accepted} of {drafted.drafted} drafts stood{gain}")
    parts.append(f"first after {times.ttft_s:.2f} s")
    parts.append(f"prompt of {_tokens(times.prefill_tokens + times.cached_tokens)}")
    parts.append(f"loaded in {times.load_s:.2f} s")
    if result.finish_reason is not FinishReason.STOP:
        parts.append({"length": "cut at the limit", "cancelled": "interrupted"}[result.finish_reason.value])
    if drafted is not None and drafted.reason and not drafted.accepted:
        parts.append(f"no drafts ({drafted.reason})")
    return f"[{result.model}: {', '.join(parts)}]"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def run(asking: Asking, host: HostProcess) -> int:
    """Ask, print, and say how it ended.

    Returns:
        The exit code.

    Raises:
        EdgechatError: there is no answer, or only a part of one, which was printed.
    """
    turn = Turn(asking)
    try:
        asyncio.run(_interruptible(turn, host))
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):
            turn.end_line()
            if asking.as_json:
                print_failure(error, turn.result)
        raise
    if turn.interrupted:
        turn.result.error = Failure(ExitCode.INTERRUPTED, failures.INTERRUPTED)
    turn.end()
    return ExitCode.INTERRUPTED if turn.interrupted else ExitCode.DONE


def print_failure(error: Exception, result: Result) -> None:
    """Print, as `--json` does, what there is beside an error."""
    if isinstance(error, BrokenPipeError):
        return
    result.error = msgspec.convert(failures.told_of(error), Failure)
    output.json_object(result)


async def _interruptible(turn: Turn, host: HostProcess) -> None:
    """Run a turn; Ctrl-C ends the answer, and what was printed stays."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(turn.run(host))

    def interrupt() -> None:
        if turn.interrupted or turn.answer is None or not turn.heard:
            running.cancel()
        else:
            turn.answer.cancel()
            loop.call_later(CANCEL_S, running.cancel)
        turn.interrupted = True

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await running
    except asyncio.CancelledError:
        if not turn.interrupted:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if turn.interrupted:  # it is ending: an impatient key must not spoil that
            signal.signal(signal.SIGINT, signal.SIG_IGN)
