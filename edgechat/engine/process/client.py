"""The engine's process, from outside: start it, ask it, and say in one line what it died of.

Imports no native code: a crash in the engine costs one answer, and never the program that asked.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Self

import msgspec

from edgechat.engine.process.answer import Answer
from edgechat.engine.process.frames import AsyncReader, AsyncWriter, FrameError
from edgechat.engine.process.messages import (
    Cancel,
    Event,
    Finished,
    Forget,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Refused,
    Score,
    Scored,
    ScoreDone,
    Shutdown,
)
from edgechat.engine.process.obituary import Death, EngineDied, count_oom_kills, obituary
from edgechat.engine.process.spawn import HostProcess, spawn_host
from edgechat.engine.process.watchdog import Watchdog
from edgechat.errors import BY_CODE, EdgechatError, EngineCrashedError, ExitCode
from edgechat.records import LoadSettings, ModelInfo

GRACE_S = 2.0
"""How long a process that was asked to leave may take, before it is told to."""

_Queue = asyncio.Queue[Event | EngineCrashedError]


@dataclass(frozen=True, slots=True)
class Scores:
    """A text's log-probabilities, window by window."""

    windows: tuple[Scored, ...]
    n_text_tokens: int


class EngineClosed(EngineCrashedError):
    """The engine was closed, or given another model, while a request was running."""


def error_from_code(code: int, message: str) -> EdgechatError:
    """The error that the host sent as a code and a line."""
    try:
        return BY_CODE[ExitCode(code)](message)
    except (ValueError, KeyError):
        return EdgechatError(message)


class EngineClient:
    """One engine with one model. Made by `start`; of use on the event loop that started it alone."""

    info: ModelInfo
    """The loaded model."""
    notes: tuple[str, ...]
    """What the person should know of how it was loaded."""
    load_s: float

    def __init__(self, host: HostProcess, reader: AsyncReader, writer: AsyncWriter) -> None:
        """Use `start`."""
        self._host = host
        self._writer = writer
        self._loaded: asyncio.Future[Loaded | LoadFailed] = asyncio.get_running_loop().create_future()
        self._running: dict[int, _Queue] = {}
        self._ids = itertools.count(1)
        self._on_progress: Callable[[float], None] | None = None
        self._closing = False
        self._watchdog = Watchdog(host.process.pid)
        self.dead: EngineCrashedError | None = None
        """Why it can't be asked any more."""
        self.on_death: Callable[[EngineCrashedError], None] | None = None
        """Called once, when the process dies without having been asked to."""
        self._reading = asyncio.create_task(self._read_events(reader))
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(
        cls,
        settings: LoadSettings,
        *,
        on_progress: Callable[[float], None] | None = None,
        host: HostProcess | None = None,
    ) -> Self:
        """Start a process and load a model.

        Args:
            settings: the model and how to load it.
            on_progress: called with 0 to 1 while it loads.
            host: a process that was started ahead with `spawn_host`.

        Raises:
            EdgechatError: the model can't be loaded; the class says why.
            EngineDied: the process died while it loaded.
        """
        host = spawn_host() if host is None else host
        try:
            reader, writer = await _connect(host)
            client = cls(host, reader, writer)
        except BaseException:
            host.process.kill()
            host.process.wait()
            raise
        client._on_progress = on_progress
        try:
            writer.write(Load(settings))
            answer = await client._loaded
        except BaseException:
            await client.close()
            raise
        if isinstance(answer, LoadFailed):
            await client.close()
            trace = f"; its log: {host.log}" if answer.code == ExitCode.BUG else ""
            raise error_from_code(answer.code, answer.error + trace)
        client.info, client.notes, client.load_s = answer.info, answer.notes, answer.load_s
        return client

    @property
    def pid(self) -> int:
        """The process."""
        return self._host.process.pid

    @property
    def alive(self) -> bool:
        """It can be asked."""
        return self.dead is None and not self._closing

    def generate(self, request: Generate) -> Answer:
        """Answer a prompt. Several may run at once.

        Args:
            request: its `id` is replaced by one of the client's own.

        Returns:
            Prefilled, Delta and Note events, then Finished or Refused; iterating raises EngineDied where the
            process dies first.
        """
        return Answer(lambda answer: self._events(request, answer))

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: the engine lets go of it, and of its saved state."""
        if self.alive:
            self._writer.write(Forget(conversation))

    async def score(
        self, text: str, n_ctx: int, *, on_window: Callable[[Scored], None] | None = None
    ) -> Scores:
        """Log-probabilities of a text's own tokens.

        Args:
            text: the text.
            n_ctx: tokens in a window.
            on_window: called with each window as it is done.

        Raises:
            EdgechatError: it can't be scored, or the process died.
        """
        windows: list[Scored] = []
        request = Score(id=0, text=text, n_ctx=n_ctx)
        async with contextlib.aclosing(self._events(request)) as events:
            async for event in events:
                match event:
                    case Scored():
                        windows.append(event)
                        if on_window is not None:
                            on_window(event)
                    case ScoreDone():
                        return Scores(tuple(windows), event.n_text_tokens)
                    case Refused():
                        raise error_from_code(event.code, event.error)
        raise EngineClosed("the engine ended a text's score before it was done")

    async def close(self) -> None:
        """End the process: ask, then tell, then kill. Requests that still run raise EngineClosed."""
        process = self._host.process
        if not self._closing:
            self._closing = True
            self._watching.cancel()
            if self._loaded.done() and not self._loaded.cancelled():
                self._writer.write(Shutdown())
                await self._ended_within(GRACE_S)
        self._writer.close()  # the end of its input: it leaves at once
        if not await self._ended_within(GRACE_S):
            process.terminate()
            if not await self._ended_within(GRACE_S):
                process.kill()
        await asyncio.shield(self._reading)

    async def _ended_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._reading}, timeout=seconds)
        return bool(done)

    async def _events(
        self, request: Generate | Score, answer: Answer | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send a request and yield what comes back; end it where the reader leaves early."""
        if self.dead is not None:
            raise self.dead
        if self._closing:
            raise EngineClosed("the engine is closed")
        request_id = next(self._ids)
        queue: _Queue = asyncio.Queue()
        self._running[request_id] = queue
        self._watchdog.expect()
        try:
            self._writer.write(msgspec.structs.replace(request, id=request_id))
            if answer is not None:
                answer.when_cancelled(lambda: self._cancel(request_id))
            while True:
                event = await queue.get()
                if isinstance(event, EngineCrashedError):
                    raise event
                if isinstance(event, Finished | Refused | ScoreDone):
                    del self._running[request_id]
                yield event
                if request_id not in self._running:
                    return
        finally:
            self._cancel(request_id)
            self._running.pop(request_id, None)

    def _cancel(self, request_id: int) -> None:
        if request_id in self._running and self.alive:
            self._writer.write(Cancel(request_id))

    async def _read_events(self, reader: AsyncReader) -> None:
        """Hand out events until the process ends, then say why it did."""
        try:
            while (event := await reader.read()) is not None:
                self._watchdog.heard()
                self._dispatch(event)
        except FrameError as error:
            self._host.process.kill()
            await self._bury(f"the engine sent {error}")
        except Exception as error:  # a callback's: without this, everyone would wait for ever
            self._host.process.kill()
            await self._bury(f"a bug of edgechat at an event of the engine: {type(error).__name__}: {error}")
        else:
            await self._bury()

    def _dispatch(self, event: Event) -> None:
        match event:
            case Loading():
                if self._on_progress is not None:
                    self._on_progress(event.progress)
            case Loaded() | LoadFailed():
                if not self._loaded.done():
                    self._loaded.set_result(event)
            case _:
                queue = self._running.get(event.id)
                if queue is not None:  # else: it was left, and this was under way
                    queue.put_nowait(event)

    async def _bury(self, reason: str = "") -> None:
        """Take leave of the ended process, and tell everyone who waits for it."""
        self._watching.cancel()
        process = self._host.process
        try:
            returncode = await asyncio.wait_for(asyncio.to_thread(process.wait, GRACE_S), 2 * GRACE_S)
        except Exception:  # it closed its output, and lives: it is of no use any more
            process.kill()
            returncode = await asyncio.to_thread(process.wait)
        self._writer.close()
        if self._closing:
            self.dead = EngineClosed("the engine was closed")
        else:
            death = Death(
                returncode=returncode,
                log=self._host.log,
                loading=not self._loaded.done(),
                oom_kill=count_oom_kills() > self._host.oom_kills,
                hung=self._watchdog.hung,
            )
            self.dead = EngineDied(reason) if reason else obituary(death)
        if not self._loaded.done():
            self._loaded.set_exception(self.dead)
            self._loaded.exception()  # whoever awaits it gets it; nobody may, after a cancelled start
        for queue in self._running.values():
            queue.put_nowait(self.dead)
        if not self._closing and self.on_death is not None:
            self.on_death(self.dead)

    async def _watch(self) -> None:
        """End a process that neither works nor answers."""
        while True:
            await asyncio.sleep(self._watchdog.interval_s)
            if not self._running and self._loaded.done():
                continue  # nothing is expected of it, and an idle app should sleep
            if await asyncio.to_thread(self._watchdog.is_hung):
                self._host.process.kill()
                return


async def _connect(host: HostProcess) -> tuple[AsyncReader, AsyncWriter]:
    """The two ends of a host's pipes, on the running loop."""
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), host.process.stdout)
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, host.process.stdin)
    return AsyncReader(stream), AsyncWriter(transport)
