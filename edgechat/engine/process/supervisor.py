"""Keeps an engine running: restarts it after a death, more carefully after three, and not for ever."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from edgechat.engine.process.answer import Answer
from edgechat.engine.process.client import EngineClient, EngineClosed
from edgechat.engine.process.messages import Event, Finished, Generate
from edgechat.engine.process.obituary import EngineDied
from edgechat.engine.process.state_files import remove_states
from edgechat.errors import EngineCrashedError
from edgechat.records import LoadSettings, ModelInfo

DEATHS_TO_SAFE_MODE = 3
DEATHS_TO_GIVE_UP = 6
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0

SAFE_MODE_NOTE = (
    "The engine died three times in a row: it goes on in safe mode "
    "(no GPU, small batches, no memory mapping)."
)


class State(StrEnum):
    """Where the engine stands."""

    STOPPED = "stopped"
    """No process; the next request starts one."""
    LOADING = "loading"
    READY = "ready"
    GIVEN_UP = "given_up"
    """It died too often; `start` begins anew."""


def safe(settings: LoadSettings) -> LoadSettings:
    """The same model, loaded as carefully as can be."""
    return msgspec.structs.replace(settings, n_gpu_layers=0, n_batch=64, use_mmap=False)


class EngineSupervisor:
    """An engine that outlives its process.

    A request that is running when the process dies raises EngineDied; the next one is answered by a new
    process, which is started at once.
    """

    def __init__(
        self,
        settings: LoadSettings,
        *,
        on_progress: Callable[[float], None] | None = None,
        on_state: Callable[[State], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            settings: the model and how to load it; in safe mode `safe` of it.
            on_progress: called with 0 to 1 while a model loads.
            on_state: called whenever the state changes.
            on_note: called with what the person should know: notes of a load.
            on_warning: called with trouble that was got over: a death, safe mode; None: `on_note` is.
        """
        self._settings = settings
        self._on_progress = on_progress
        self._on_state = on_state
        self._on_note = on_note
        self._on_warning = on_note if on_warning is None else on_warning
        self._client: EngineClient | None = None
        self._starting: asyncio.Task[EngineClient] | None = None
        self._last_death: EngineCrashedError | None = None
        self._told: set[str] = set()
        self._running = 0
        self.deaths = 0
        """Deaths in a row, without a finished answer in between."""
        self.state = State.STOPPED

    @property
    def safe_mode(self) -> bool:
        """It died so often that it is loaded with care."""
        return self.deaths >= DEATHS_TO_SAFE_MODE

    @property
    def info(self) -> ModelInfo | None:
        """The loaded model; None while there is none."""
        return self._client.info if self._client is not None and self._client.alive else None

    @property
    def pid(self) -> int | None:
        """The process that can be asked; None while there is none."""
        return self._client.pid if self._client is not None and self._client.alive else None

    async def start(self) -> ModelInfo:
        """Load the model now, not with the first request; where it was given up, begin anew.

        Raises:
            EdgechatError: it can't be loaded.
        """
        if self._given_up:
            self.deaths = 0
            self._last_death = None
            self._told.clear()
        return (await self._ready()).info

    def generate(self, request: Generate) -> Answer:
        """Answer a prompt, as `EngineClient.generate`; waits for the engine where it is loading."""
        return Answer(lambda answer: self._events(request, answer))

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: let go of it, and of its saved states of any model."""
        if self._client is not None:
            self._client.forget(conversation)
        if self._settings.state_folder:
            remove_states(Path(self._settings.state_folder), conversation)

    async def close(self) -> None:
        """End the process. A request after this starts a new one."""
        starting, client = self._starting, self._client
        self._starting = self._client = None
        if starting is not None and not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await starting
        if client is not None:
            await client.close()
        self._enter(State.STOPPED)

    async def _events(self, request: Generate, answer: Answer) -> AsyncGenerator[Event, None]:
        client = await self._ready()
        inner = client.generate(request)
        answer.when_cancelled(inner.cancel)
        self._running += 1
        try:
            async for event in inner:
                if isinstance(event, Finished):
                    self.deaths = 0 if not self.safe_mode else DEATHS_TO_SAFE_MODE
                yield event
        finally:
            self._running -= 1

    async def _ready(self) -> EngineClient:
        """A client that can be asked; started where there is none."""
        if self._client is not None and self._client.alive:
            return self._client
        if self._given_up:
            often = f" ({self.deaths} times in a row: given up)" if self.deaths > 1 else ""
            raise EngineDied(f"{self._last_death}{often}")
        if self._starting is None:
            self._begin(pause_s=0.0)
        starting = self._starting
        assert starting is not None
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():  # `close` came in between
                raise EngineClosed("the engine was closed") from None
            raise

    def _begin(self, pause_s: float) -> None:
        self._starting = asyncio.create_task(self._start_client(pause_s))
        self._starting.add_done_callback(_look_at_result)

    async def _start_client(self, pause_s: float) -> EngineClient:
        """Start a process, again and again while it dies, until it is loaded, refused or given up."""
        try:
            while True:
                self._enter(State.LOADING)
                await asyncio.sleep(pause_s)
                settings = self._settings
                if self.safe_mode:
                    settings = safe(settings)
                    self._tell(SAFE_MODE_NOTE, warning=True)
                try:
                    client = await EngineClient.start(settings, on_progress=self._on_progress)
                    break
                except EngineDied as death:
                    self._count(death)
                    if self._given_up:
                        raise
                    self._tell(f"{death}; trying again", warning=True)
                    pause_s = self._pause_s()
        except BaseException:
            self._starting = None
            self._enter(State.GIVEN_UP if self._given_up else State.STOPPED)
            raise
        self._client, self._starting = client, None
        client.on_death = self._restart
        if client.dead is not None:  # between its load and now
            self._restart(client.dead)
            raise client.dead
        for note in client.notes:
            self._tell(note)
        self._enter(State.READY)
        return client

    def _restart(self, death: EngineCrashedError) -> None:
        """The process died: start another, unless it did so too often."""
        self._count(death)
        if not self._running:  # else the request says it
            then = "the next question starts it again" if self._given_up else "it was started again"
            self._tell(f"{death}; {then}", warning=True)
        if self._given_up:
            self._enter(State.GIVEN_UP)
            return
        if self._starting is None:
            self._begin(self._pause_s())

    def _count(self, death: EngineCrashedError) -> None:
        self.deaths += 1
        self._last_death = death

    @property
    def _given_up(self) -> bool:
        """Another start would be of no use."""
        hopeless = isinstance(self._last_death, EngineDied) and self._last_death.hopeless
        return self.deaths >= DEATHS_TO_GIVE_UP or (self.deaths > 0 and hopeless)

    def _pause_s(self) -> float:
        """None after the first death, then longer and longer."""
        if self.deaths <= 1:
            return 0.0
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.deaths - 2))

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)

    def _tell(self, note: str, *, warning: bool = False) -> None:
        """Say something once per model."""
        if note not in self._told:
            self._told.add(note)
            listener = self._on_warning if warning else self._on_note
            if listener is not None:
                listener(note)


def _look_at_result(task: "asyncio.Task[EngineClient]") -> None:
    """A restart may fail while nobody waits for it: the next request meets the trouble anew."""
    if not task.cancelled():
        task.exception()
