"""The app in a terminal that isn't there, on a scripted engine."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from edgechat.chat.appearance import DARK, LIGHT, ThemeMemory
from edgechat.chat.screens.chat import pause_after
from edgechat.chat.screens.help import HelpScreen
from edgechat.errors import EngineCrashedError, NotFoundError
from edgechat.history import OpenedHistory, Status
from tests.edgechat.chat.on_screen import ask, ready, said, screen_text, typed


async def test_a_question_and_its_answer(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Say hello")
        assert said(app) == ["Say hello", "Hello there."]
        assert app.chat.prompt.area.text == ""
        await wait_until(lambda: "Hello there." in screen_text(app) and "4 / 8,192" in screen_text(app))
        shown = screen_text(app)
        assert "Say hello" in shown
        assert "40.0 tok/s" in shown


async def test_the_app_is_drawn_before_the_model_is_loaded(make_app, engine, wait_until) -> None:
    engine.loading = [gate := asyncio.Event()]
    app = make_app()
    async with app.run_test() as pilot:
        await wait_until(lambda: "loading" in screen_text(app) and "Try one of these" in screen_text(app))
        await typed(pilot, "Are you there?")
        await pilot.press("enter")
        assert engine.requests == []
        await wait_until(lambda: "Are you there?" in screen_text(app))
        gate.set()
        await wait_until(lambda: "Hello there." in screen_text(app))


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_stop(make_app, engine, wait_until, key: str) -> None:
    engine.script = [["One, two", asyncio.Event()]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await typed(pilot, "Count")
        await pilot.press("enter")
        await wait_until(lambda: "One, two" in screen_text(app))
        await pilot.press(key)
        await ready(app, wait_until)
        await wait_until(lambda: "stopped" in screen_text(app))
        assert app.controller.entries[-1].status is Status.STOPPED


async def test_regenerate_and_edit(make_app, engine, wait_until) -> None:
    engine.script = [["alpha"], ["bravo"], ["charlie"]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Tell me")
        await pilot.press("ctrl+r")
        await wait_until(lambda: "bravo" in screen_text(app) and "alpha" not in screen_text(app))
        await ready(app, wait_until)
        await pilot.press("f4")
        await wait_until(lambda: app.chat.prompt.area.text == "Tell me")
        await typed(pilot, " more")
        await pilot.press("enter")
        await wait_until(lambda: said(app) == ["Tell me more", "charlie"])


async def test_a_crash_is_one_line(make_app, engine, wait_until) -> None:
    engine.script = [["The first words", EngineCrashedError("the engine was killed (signal 9)")], ["fine"]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Tell me")
        for words in ("signal 9", "The first words", "cut short"):
            await wait_until(lambda w=words: w in screen_text(app))
        await ask(app, pilot, wait_until, "Again")
        await wait_until(lambda: "fine" in screen_text(app))


async def test_a_model_that_cannot_be_loaded(make_app, engine, store, wait_until) -> None:
    engine.loading = [NotFoundError("no model at /nowhere.gguf: name another one")]
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await wait_until(lambda: "no model at /nowhere.gguf: name another one" in screen_text(app))
        await wait_until(lambda: "● no model" in screen_text(app))
        await pilot.press("f1")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))


async def test_what_the_engine_and_the_history_say_is_shown(make_app, store, engine, wait_until) -> None:
    callbacks: dict[str, Any] = {}
    app = make_app(
        engine=lambda **given: callbacks.update(given) or engine,
        history=OpenedHistory(store, "history.db is damaged. It is kept."),
    )
    async with app.run_test():
        await wait_until(lambda: "history.db is damaged" in screen_text(app))
        callbacks["on_note"]("Safe mode.")
        await wait_until(lambda: "Safe mode." in screen_text(app))


async def test_theme_is_remembered(make_app, tmp_path, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await pilot.press("ctrl+t")
        await wait_until(lambda: app.theme == LIGHT.name)
    again = make_app()
    async with again.run_test() as pilot:
        assert again.theme == LIGHT.name
        await pilot.press("ctrl+t")
        await wait_until(lambda: again.theme == DARK.name)
    (tmp_path / "theme").write_text("no such theme")
    assert make_app().theme == DARK.name


async def test_every_theme_draws(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Hello")
        for theme in app.available_themes:
            app.theme = theme
            await pilot.pause()
        await wait_until(lambda: "Hello there." in screen_text(app))


async def test_copying(make_app, engine, wait_until) -> None:
    engine.script = [["Look:\n\n```python\nx = 1\n```\n\nand [here](https://example.org)"]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("f3")
        assert app.clipboard == ""
        await ask(app, pilot, wait_until, "Show me")
        await pilot.press("f3")
        await wait_until(lambda: app.clipboard.startswith("Look:"))
        await wait_until(lambda: app.screen.query(".code--copy"))
        await pilot.click(".code--copy")
        await wait_until(lambda: app.clipboard == "x = 1")


async def test_links_are_copied_and_never_opened(make_app, engine, wait_until, monkeypatch) -> None:
    opened: list[str] = []
    app = make_app()
    monkeypatch.setattr(app, "open_url", lambda url, **_: opened.append(url))
    engine.script = [["[here](https://example.org)"]]
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Show me")
        await wait_until(lambda: app.screen.query("MarkdownParagraph"))
        await pilot.pause()
        await pilot.click("MarkdownParagraph", offset=(1, 0))
        await wait_until(lambda: app.clipboard == "https://example.org")
    assert opened == []


@pytest.mark.parametrize("way", ["ctrl+q", "/quit"])
async def test_quitting_in_mid_answer_saves_it(make_app, engine, store, wait_until, way: str) -> None:
    engine.script = [["One, two", asyncio.Event()]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await typed(pilot, "Count")
        await pilot.press("enter")
        await wait_until(lambda: app.controller.last_answer == "One, two")
        if way == "/quit":
            await typed(pilot, way)
            await pilot.press("enter")
        else:
            await pilot.press(way)
        await wait_until(lambda: app.return_code is not None)
    conversation = app.controller.conversation_id
    app.controller.save_now()
    await app.controller.close()
    assert engine.closed
    assert engine.running[0].left
    answer = store.messages(conversation)[1]
    assert (answer.content, answer.status) == ("One, two", Status.STOPPED)
    assert answer.n_context > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_signals_end_the_app_and_save(make_app, engine, wait_until, number, monkeypatch) -> None:
    monkeypatch.setattr("edgechat.chat.app.LAST_PATIENCE_S", 1e6)
    engine.script = [["One, two", asyncio.Event()]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await typed(pilot, "Count")
        await pilot.press("enter")
        await wait_until(lambda: app.controller.last_answer == "One, two")
        os.kill(os.getpid(), number)
        await wait_until(lambda: app.return_code is not None)
        assert app.return_code == 128 + number
        [_, answer] = app.controller.store.messages(app.controller.conversation_id)
        assert answer.content == "One, two"
    await app.controller.close()


def test_the_app_imports_nothing_native() -> None:
    code = (
        "import sys; import edgechat.chat.app, edgechat.engine.process.supervisor; "
        "print(sorted({'llama_cpp', 'torch', 'numpy', 'transformers', 'gguf'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_drawing_leaves_the_cores_to_the_model() -> None:
    """Twenty times a second, an eighth of a core where that is less often, and five times at least."""
    assert pause_after(0.001) == 0.05
    assert pause_after(0.015) == pytest.approx(0.12)
    assert pause_after(0.5) == 0.2


def test_the_theme_is_remembered_for_its_owner_alone(tmp_path) -> None:
    memory = ThemeMemory(tmp_path / "theme", "light")
    assert memory.recall() == LIGHT.name
    memory.remember(DARK.name)
    assert memory.recall() == DARK.name
    assert (tmp_path / "theme").stat().st_mode & 0o777 == 0o600
