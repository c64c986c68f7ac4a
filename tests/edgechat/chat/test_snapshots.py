"""How the app looks, at three sizes; nothing in it moves, and no clock is in it.

After a change on purpose: `pytest tests/edgechat/chat/test_snapshots.py --snapshot-update`, and look at
the pictures before committing them.
"""

import asyncio
import time
from typing import Any

import pytest

from edgechat.chat.engine import EngineState
from edgechat.chat.entries import Severity
from edgechat.chat.events import State
from edgechat.chat.options import ChatOptions
from edgechat.chat.screens.conversations import when
from edgechat.engine.process.messages import Evicted, Finished
from edgechat.errors import EngineCrashedError
from edgechat.history import HistoryStore, OpenedHistory, Status
from edgechat.records import FinishReason, SamplingSettings, Speculation, Timings

SIZES = [(80, 24), (120, 40), (60, 20)]
NOW = 1_767_225_600.0  # 2026-01-01 00:00 UTC
ANSWER = """## Tides in short

The **Moon's gravity** pulls the oceans towards it, and makes two bulges. As the Earth turns, each coast \
passes through *both* of them.

- Spring tides: Sun and Moon line up
- Neap tides: weaker, by about `20%`

```python
def tide(hours: float) -> float:
    # two high tides a day
    return math.cos(2 * math.pi * hours / 12.42)
```

| Body | Force |
|------|-------|
| Moon | 1.00  |
| Sun  | 0.46  |
"""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def compare(make_app, snap_compare) -> Any:
    def compare(size: tuple[int, int], prepare: Any, **changes: Any) -> bool:
        store = HistoryStore(None, clock=lambda: NOW - 3600)
        app = make_app(history=OpenedHistory(store), timer=lambda: 0.0, **changes)

        async def run_before(pilot: Any) -> None:
            await until(lambda: app.controller.status.state in (State.IDLE, State.UNAVAILABLE, State.LOADING))
            await prepare(app, pilot)
            await until(lambda: not app.chat._waiting and not app.chat.transcript._shifting)
            await pilot.pause()

        return bool(snap_compare(app, terminal_size=size, run_before=run_before))

    return compare


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def ask(app: Any, text: str) -> None:
    await until(lambda: app.controller.status.state is State.IDLE)
    app.controller.send(text)
    await until(lambda: app.controller.status.state is State.IDLE)


@pytest.mark.parametrize("size", SIZES)
def test_welcome(compare, size) -> None:
    async def prepare(app: Any, pilot: Any) -> None:
        await until(lambda: app.controller.status.state is State.IDLE)

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_answer(compare, engine, size, theme) -> None:
    engine.script = [[ANSWER]]

    async def prepare(app: Any, pilot: Any) -> None:
        if theme == "light":
            await pilot.press("ctrl+t")
        await ask(app, "Why are there tides?\nExplain it with a little code.")
        await until(lambda: app.screen.query("MarkdownTable"))

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
def test_trouble(compare, engine, size) -> None:
    engine.script = [
        ["The first words of", EngineCrashedError("the engine was killed (signal 9): ask again")]
    ]

    async def prepare(app: Any, pilot: Any) -> None:
        await ask(app, "Why are there tides?")
        app.controller.notice("It goes on in safe mode (no GPU, small batches).", Severity.WARNING)
        app.controller.notice("The model has no chat template: plain completion.")
        await until(lambda: len(app.screen.query(".notice--text")) == 3)

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
def test_writing(compare, engine, size) -> None:
    engine.script = [["The **Moon", "'s** gravity", asyncio.Event()]]

    async def prepare(app: Any, pilot: Any) -> None:
        await until(lambda: app.controller.status.state is State.IDLE)
        app.controller.send("Why are there tides?")
        await until(lambda: app.screen.query("MarkdownParagraph"))
        await until(lambda: app.chat.transcript.live[-1]._markdown.source.endswith("gravity"))
        await pilot.press(*"And th", "ctrl+j", *"en")

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
def test_window(compare, engine, size) -> None:
    gone = [Evicted(1, (0, 1), (), n_tokens=900, n_lost=900, n_pinned=900, n_kept=5200)]
    engine.script = [["Sailors did, long ago."], [*gone, "The **Moon** pulls at the sea."]]

    async def prepare(app: Any, pilot: Any) -> None:
        await ask(app, "Who knew of tides first?")
        await ask(app, "Why are there tides?")
        app.controller._set(n_pinned=900, n_context=5200)
        await until(lambda: app.screen.query(".unseen"))

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
def test_restarting(compare, engine, size) -> None:
    async def prepare(app: Any, pilot: Any) -> None:
        await ask(app, "Why are there tides?")
        app.controller.engine_state(EngineState.STARTING)
        app.controller.loading_progress(0.4)

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
def test_details(compare, engine, size) -> None:
    timings = Timings(0.0, 0.312, 20, 0.3, 30, 0.75, 40.0, 1500)
    drafts = Speculation(12, 44, 34, 32, 3.67, 1.84, 1.8)
    engine.script = [["Hi.", Finished(1, FinishReason.STOP, (1,), timings, 9, drafts)]]

    async def prepare(app: Any, pilot: Any) -> None:
        await ask(app, "Why are there tides?")
        await pilot.press("f6")
        await until(lambda: app.screen is not app.chat)

    options = ChatOptions(model="Scripted-1B", sampling=SamplingSettings(seed=7))
    assert compare(size, prepare, options=options)


def test_loading(compare, engine) -> None:
    engine.loading = [asyncio.Event()]

    async def prepare(app: Any, pilot: Any) -> None:
        app.controller.loading_progress(0.42)
        app.controller.send("Are you there?")
        await until(lambda: app.screen.query(".question--text"))

    assert compare((80, 24), prepare)


@pytest.mark.parametrize("size", SIZES)
def test_conversations(compare, size) -> None:
    async def prepare(app: Any, pilot: Any) -> None:
        store = app.controller.store
        for title in ("Why are there tides?", "A haiku about a lighthouse", "Reverse a list in Python"):
            conversation = store.create(title, "SmolLM2-135M-Instruct", "")
            store.add(conversation.id, "user", title, status=Status.COMPLETE)
        await pilot.press("ctrl+o")
        await until(lambda: app.screen.query("#found"))
        await until(lambda: app.screen.query_one("#found").option_count == 3)

    assert compare(size, prepare)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", ["f1", "f2"])
def test_dialogs(compare, size, key) -> None:
    async def prepare(app: Any, pilot: Any) -> None:
        await until(lambda: app.controller.status.state is State.IDLE)
        await pilot.press(key)
        await until(lambda: app.screen is not app.chat)

    assert compare(size, prepare)


def test_confirm(compare) -> None:
    async def prepare(app: Any, pilot: Any) -> None:
        await ask(app, "Why are there tides?")
        app.chat.action_delete()
        await until(lambda: app.screen is not app.chat)

    assert compare((80, 24), prepare)


def test_times() -> None:
    hour, day = 3600, 86_400
    assert when(NOW + 5 * hour, NOW + 9 * hour) == "05:00"
    assert when(NOW - hour, NOW + 9 * hour) == "yesterday"
    assert when(NOW + 2 * day, NOW + 40 * day) == "3 January"
    assert when(NOW - 20 * day, NOW) == "12 December 2025"
