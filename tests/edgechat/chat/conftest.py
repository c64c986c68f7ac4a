"""A scripted engine, a store in a temporary folder, and what a listener hears."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgechat.chat.app import ChatApp, ChatSetup
from edgechat.chat.appearance import ThemeMemory
from edgechat.chat.controller import ChatController
from edgechat.chat.events import ChatEvent, Grew
from edgechat.chat.options import ChatOptions
from edgechat.engine.process.messages import Delta, Event, Finished, Generate, Refused
from edgechat.history import HistoryStore, OpenedHistory
from edgechat.records import Capabilities, FinishReason, ModelInfo, Timings

Step = str | Exception | asyncio.Event | Event
"""A text is a Delta, an exception is raised, an asyncio.Event is waited for, an event is passed on."""

INFO = ModelInfo(
    name="Scripted-1B",
    path="/models/scripted.gguf",
    architecture="llama",
    quantization="Q4_1",
    n_vocab=100,
    n_layers=2,
    n_ctx_train=8192,
    n_ctx=8192,
    n_params=10**9,
    size_bytes=10**9,
    kv_bytes_per_token=100,
    eog_ids=(2,),
    chat_template="{{ messages }}",
    can=Capabilities(shift=True, rollback=-1, fork=True),
    backend="CPU",
    n_gpu_layers=0,
    n_threads=2,
    fingerprint="f" * 16,
)
TIMINGS = Timings(0.0, 0.312, 20, 0.3, 30, 0.75, 40.0, 0)


class ScriptedAnswer:
    """One answer of the script."""

    def __init__(self, steps: Sequence[Step], request: Generate, deaf: bool) -> None:
        self.steps = steps
        self.request = request
        self.cancelled = asyncio.Event()
        self.deaf = deaf
        self.left = False

    def cancel(self) -> None:
        if not self.deaf:
            self.cancelled.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        n_prompt = sum(len(m.content.split()) for m in self.request.messages)
        n_tokens = 0
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    waits = [asyncio.ensure_future(step.wait()), asyncio.ensure_future(self.cancelled.wait())]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for wait in waits:
                        wait.cancel()
                else:
                    await asyncio.sleep(0)
                if self.cancelled.is_set():
                    yield self._finished(FinishReason.CANCELLED, n_prompt, n_tokens)
                    return
                if isinstance(step, str):
                    n_tokens += 1
                    yield Delta(1, step, n_tokens)
                elif not isinstance(step, asyncio.Event):
                    yield step
                    if isinstance(step, Finished | Refused):
                        return
            yield self._finished(FinishReason.STOP, n_prompt, n_tokens)
        finally:
            self.left = True

    def _finished(self, reason: FinishReason, n_prompt: int, n_tokens: int) -> Finished:
        return Finished(1, reason, tuple(range(n_tokens)), TIMINGS, n_prompt + n_tokens)


class ScriptedEngine:
    """Plays one list of steps for each request; the last one again and again."""

    def __init__(self) -> None:
        self.script: list[Sequence[Step]] = [["Hello", " there."]]
        self.loading: list[Exception | asyncio.Event] = []
        self.info = INFO
        self.requests: list[Generate] = []
        self.running: list[ScriptedAnswer] = []
        self.deaf = False
        self.starts = 0
        self.closed = False
        self.forgotten: list[str] = []

    async def start(self) -> ModelInfo:
        self.starts += 1
        while self.loading:
            step = self.loading.pop(0)
            if isinstance(step, Exception):
                raise step
            await step.wait()
        return self.info

    def generate(self, request: Generate) -> ScriptedAnswer:
        self.requests.append(request)
        steps = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.running.append(ScriptedAnswer(steps, request, self.deaf))
        return self.running[-1]

    def forget(self, conversation: str) -> None:
        self.forgotten.append(conversation)

    async def close(self) -> None:
        self.closed = True


class Listener:
    """Keeps what it hears, and a transcript made of it alone."""

    def __init__(self) -> None:
        self.events: list[ChatEvent] = []

    def __call__(self, event: ChatEvent) -> None:
        self.events.append(event)

    def grown(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Grew))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def history_path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(history_path: Path) -> Iterator[HistoryStore]:
    store = HistoryStore(history_path)
    yield store
    store.close()


@pytest.fixture
def options() -> ChatOptions:
    return ChatOptions(model="Scripted-1B")


@pytest.fixture
async def chat(
    engine: ScriptedEngine, store: HistoryStore, options: ChatOptions, listener: Listener
) -> AsyncIterator[ChatController]:
    controller = ChatController(engine, store, options, listener)
    yield controller
    await controller.close()


@pytest.fixture
def make_app(engine: ScriptedEngine, store: HistoryStore, tmp_path: Path) -> Iterator[Callable[..., ChatApp]]:
    """Makes apps on the scripted engine; nothing in them moves by itself."""
    apps: list[ChatApp] = []

    def make(**changes: Any) -> ChatApp:
        setup: dict[str, Any] = {
            "engine": lambda **listeners: engine,
            "history": OpenedHistory(store),
            "options": ChatOptions(model="Scripted-1B"),
            "theme": ThemeMemory(tmp_path / "theme"),
            "clock": lambda: 1_767_225_600.0,
        }
        app = ChatApp(ChatSetup(**setup | changes))
        app.animation_level = "none"
        apps.append(app)
        return app

    yield make
    for app in apps:
        assert not app.is_running


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], object]:
    """Let the event loop run until something is so."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)

    return wait
