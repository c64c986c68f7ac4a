"""The app in a terminal that isn't there, on a scripted engine."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from textual.widgets import Input, OptionList, TextArea

from edgechat.chat.actions import ACTIONS
from edgechat.chat.appearance import DARK, LIGHT
from edgechat.chat.entries import Kind
from edgechat.chat.events import Added, Grew, State, StatusChanged
from edgechat.chat.screens.chat import merged
from edgechat.chat.screens.confirm import ConfirmScreen
from edgechat.chat.screens.conversations import ConversationsScreen
from edgechat.chat.screens.help import HelpScreen
from edgechat.chat.screens.system_prompt import SystemPromptScreen
from edgechat.chat.widgets.welcome import Example
from edgechat.errors import EngineCrashedError, NotFoundError
from edgechat.history import OpenedHistory, Status


def screen_text(app: Any) -> str:
    """What is on the screen, line by line."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def said(app: Any, *kinds: Kind) -> list[str]:
    return [e.text for e in app.controller.entries if not kinds or e.kind in kinds]


async def typed(pilot: Any, text: str) -> None:
    await pilot.press(*({" ": "space", "\n": "ctrl+j"}.get(c, c) for c in text))


async def ready(app: Any, wait_until: Any) -> None:
    await wait_until(lambda: app.controller.status.state is State.IDLE)


async def ask(app: Any, pilot: Any, wait_until: Any, text: str) -> None:
    answers = len(said(app, Kind.ASSISTANT))
    await typed(pilot, text)
    await pilot.press("enter")
    await wait_until(lambda: len(said(app, Kind.ASSISTANT)) > answers and not app.controller.status.busy)
    await pilot.pause()


async def test_a_question_and_its_answer(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Say hello")
        assert said(app) == ["Say hello", "Hello there."]
        assert app.chat.prompt.area.text == ""
        await wait_until(lambda: "Hello there." in screen_text(app))
        shown = screen_text(app)
        assert "Say hello" in shown
        assert "40.0 tok/s" in shown
        assert "4 / 8,192" in shown


async def test_the_app_is_drawn_before_the_model_is_loaded(make_app, engine, wait_until) -> None:
    engine.loading = [gate := asyncio.Event()]
    app = make_app()
    async with app.run_test() as pilot:
        await pilot.pause()
        assert "loading" in screen_text(app)
        assert "Try one of these" in screen_text(app)
        await typed(pilot, "Are you there?")
        await pilot.press("enter")
        assert engine.requests == []
        await wait_until(lambda: "Are you there?" in screen_text(app))
        gate.set()
        await wait_until(lambda: "Hello there." in screen_text(app))


async def test_letters_typed_after_enter_stay(make_app, engine, wait_until) -> None:
    """The keys of a fast typist are all there before the first is handled."""
    from textual import events

    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        for key in "one":
            app.post_message(events.Key(key, key))
        app.post_message(events.Key("enter", "\r"))
        for key in "two":
            app.post_message(events.Key(key, key))
        await wait_until(lambda: said(app, Kind.USER) == ["one"] and app.chat.prompt.area.text == "two")
        await pilot.pause()
        assert app.chat.prompt.area.text == "two"


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_new_lines(make_app, engine, wait_until, key: str) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("a", key, "b", "enter")
        await wait_until(lambda: said(app, Kind.USER) == ["a\nb"])


async def test_the_prompt_grows_to_eight_lines(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(80, 30)) as pilot:
        area = app.chat.prompt.area
        await pilot.pause()
        assert area.size.height == 1
        await pilot.press(*["a", "ctrl+j"] * 3)
        await pilot.pause()
        assert area.size.height == 4
        await pilot.press(*["a", "ctrl+j"] * 20)
        await pilot.pause()
        assert area.size.height == 8


async def test_a_long_paste(make_app, engine, wait_until) -> None:
    from textual import events

    text = "\r\n".join(f"line {n} " + "x" * 100 for n in range(2000))
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        app.post_message(events.Paste(text))
        await wait_until(lambda: app.chat.prompt.area.text)
        await pilot.press("enter")
        await wait_until(lambda: said(app, Kind.ASSISTANT) == ["Hello there."])
        assert said(app, Kind.USER) == [text.replace("\r\n", "\n")]


async def test_up_and_down_go_through_earlier_questions(make_app, store, wait_until) -> None:
    conversation = store.create("Old", "starter", "")
    for text in ("one", "two\nlines", "one"):
        store.add(conversation.id, "user", text, status=Status.COMPLETE)
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        area = app.chat.prompt.area
        await typed(pilot, "draft")
        await pilot.press("up")
        assert area.text == "one"
        await pilot.press("up")
        assert area.text == "two\nlines"
        await pilot.press("up")
        assert area.text == "two\nlines", "the cursor went up a line"
        await pilot.press("up")
        assert area.text == "two\nlines", "this is the oldest"
        await pilot.press("down", "down")
        assert area.text == "one"
        await pilot.press("down")
        assert area.text == "draft"
        await pilot.press("down")
        assert area.text == "draft"


async def test_enter_while_an_answer_is_written_keeps_what_was_typed(make_app, engine, wait_until) -> None:
    engine.script = [["One, ", gate := asyncio.Event(), "two"]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await typed(pilot, "Count")
        await pilot.press("enter")
        await wait_until(lambda: app.controller.status.state is State.STREAMING)
        await typed(pilot, "And on")
        await pilot.press("enter")
        await pilot.pause()
        assert app.chat.prompt.area.text == "And on"
        gate.set()
        await ready(app, wait_until)
        await pilot.press("enter")
        await wait_until(lambda: said(app, Kind.USER) == ["Count", "And on"])


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
        await wait_until(lambda: "signal 9" in screen_text(app))
        shown = screen_text(app)
        assert "The first words" in shown
        assert "cut short" in shown
        await ask(app, pilot, wait_until, "Again")
        await wait_until(lambda: "fine" in screen_text(app))


async def test_a_model_that_cannot_be_loaded(make_app, engine, store, wait_until) -> None:
    engine.loading = [NotFoundError("no model at /nowhere.gguf: name another one")]
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await wait_until(lambda: "no model at /nowhere.gguf: name another one" in screen_text(app))
        assert "● no model" in screen_text(app)
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


async def test_conversations(make_app, engine, store, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "About kangaroos")
        await pilot.press("ctrl+n")
        await wait_until(lambda: app.controller.entries == [])
        await wait_until(lambda: "Try one of these" in screen_text(app))
        await ask(app, pilot, wait_until, "About tides")

        await pilot.press("ctrl+o")
        await wait_until(lambda: isinstance(app.screen, ConversationsScreen))
        found = app.screen.query_one("#found", OptionList)
        await wait_until(lambda: found.option_count == 2)
        assert "● About tides" in screen_text(app)
        await typed(pilot, "kang")
        await wait_until(lambda: found.option_count == 1)
        await pilot.press("enter")
        await wait_until(lambda: said(app) == ["About kangaroos", "Hello there."])
        await wait_until(lambda: "About kangaroos" in screen_text(app))
        assert app.focused is app.chat.prompt.area

        await pilot.press("ctrl+o")
        await wait_until(lambda: isinstance(app.screen, ConversationsScreen))
        await wait_until(lambda: app.screen.query_one("#found", OptionList).option_count == 2)
        await pilot.press("down", "ctrl+d")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await wait_until(lambda: "Delete “About kangaroos”?" in screen_text(app))
        await pilot.press("enter")  # the focus is on Keep
        await wait_until(lambda: isinstance(app.screen, ConversationsScreen))
        assert len(store.search("")) == 2
        await pilot.press("ctrl+d")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("right", "enter")
        await wait_until(lambda: len(store.search("")) == 1)
        await wait_until(lambda: app.screen.query_one("#found", OptionList).option_count == 1)
        await pilot.press("escape")
        await wait_until(lambda: app.screen is app.chat)
        assert app.controller.entries == [], "the deleted one was shown"


async def test_an_empty_list_and_a_search_without_result(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("ctrl+o")
        await wait_until(lambda: "No conversations yet." in screen_text(app))
        await typed(pilot, "zebra")
        await wait_until(lambda: "Nothing found." in screen_text(app))
        await pilot.press("enter", "ctrl+d", "down")
        await pilot.press("escape")
        await wait_until(lambda: app.screen is app.chat)


async def test_system_prompt(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("f2")
        await wait_until(lambda: isinstance(app.screen, SystemPromptScreen))
        assert app.focused is app.screen.query_one(TextArea)
        await typed(pilot, "Be brief.")
        await pilot.press("ctrl+s")
        await wait_until(lambda: app.controller.system_prompt == "Be brief.")
        await ask(app, pilot, wait_until, "Hello")
        assert engine.requests[0].messages[0].content == "Be brief."
        await pilot.press("ctrl+s")
        await wait_until(lambda: isinstance(app.screen, SystemPromptScreen))
        assert app.screen.query_one(TextArea).text == "Be brief."
        await typed(pilot, "x")
        await pilot.press("escape")
        await wait_until(lambda: app.screen is app.chat)
        assert app.controller.system_prompt == "Be brief."


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


async def test_an_example_fills_the_prompt(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.pause()
        await pilot.click(Example)
        await wait_until(lambda: app.chat.prompt.area.text.startswith("Explain how tides"))


async def test_help_names_every_key(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(100, 80)) as pilot:
        await pilot.press("f1")
        await wait_until(lambda: "Keys" in screen_text(app))
        shown = screen_text(app)
        for action in ACTIONS:
            for key in action.keys.split(","):
                name = {"escape": "Esc"}.get(key, "+".join(p.capitalize() for p in key.split("+")))
                assert name in shown, key
        await pilot.press("f1")
        await wait_until(lambda: app.screen is app.chat)


async def test_the_palette_has_every_action(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        commands = {command.title for command in app.get_system_commands(app.screen)}
        assert {action.title for action in ACTIONS} < commands
        await ask(app, pilot, wait_until, "Hello")
        await pilot.press("ctrl+p")
        await wait_until(lambda: app.screen is not app.chat)
        await typed(pilot, "new conv")
        await wait_until(lambda: "New conversation" in screen_text(app))
        await pilot.press("enter")
        await wait_until(lambda: app.controller.entries == [])


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("/help", lambda app: isinstance(app.screen, HelpScreen)),
        ("/list", lambda app: isinstance(app.screen, ConversationsScreen)),
        ("/System", lambda app: isinstance(app.screen, SystemPromptScreen)),
        ("/new", lambda app: app.controller.entries == []),
        ("/theme", lambda app: app.theme == LIGHT.name),
        ("/copy", lambda app: app.clipboard == "Hello there."),
        ("/edit", lambda app: app.chat.prompt.area.text == "Hello"),
        ("/again", lambda app: len(app.controller.entries) == 2),
        ("/delete", lambda app: isinstance(app.screen, ConfirmScreen)),
        ("/nosuch", lambda app: any("/nosuch" in toast.message for toast in app._notifications)),
        (" /nosuch", lambda app: " /nosuch" in said(app)),
        ("/usr/bin is what?", lambda app: "/usr/bin is what?" in said(app)),
    ],
)
async def test_typed_commands(make_app, engine, wait_until, text: str, done: Any) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Hello")
        await typed(pilot, text)
        await pilot.press("enter")
        await wait_until(lambda: done(app))
        await ready(app, wait_until)


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
    assert [(m.content, m.status) for m in store.messages(conversation)][1] == ("One, two", Status.STOPPED)


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


def test_events_are_joined() -> None:
    from edgechat.chat.entries import Entry
    from edgechat.chat.events import ChatStatus

    entry = Entry(2, Kind.ASSISTANT, "")
    first, last = StatusChanged(ChatStatus(title="a")), StatusChanged(ChatStatus(title="b"))
    events = [first, Added(entry), Grew(2, "a"), last, Grew(2, "b"), Grew(3, "c"), Grew(2, "d")]
    assert merged(events) == [Added(entry), Grew(2, "ab"), Grew(3, "c"), Grew(2, "d"), last]
    assert merged([]) == []


def test_the_app_imports_nothing_native() -> None:
    code = (
        "import sys; import edgechat.chat.app, edgechat.engine.process.supervisor; "
        "print(sorted({'llama_cpp', 'torch', 'numpy', 'transformers', 'gguf'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


async def test_search_field_has_the_focus(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await pilot.press("ctrl+o")
        await wait_until(lambda: isinstance(app.focused, Input))


async def test_emptying_the_prompt(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await typed(pilot, "one\ntwo")
        await pilot.press("ctrl+u")
        assert app.chat.prompt.area.text == ""
        await pilot.press("ctrl+z")
        assert app.chat.prompt.area.text == "one\ntwo"


@pytest.mark.parametrize("key", ["enter", "ctrl+j", "alt+enter", "shift+enter"])
async def test_new_lines_in_the_system_prompt(make_app, engine, wait_until, key: str) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("f2")
        await wait_until(lambda: isinstance(app.screen, SystemPromptScreen))
        await pilot.press("a", key, "b", "ctrl+s")
        await wait_until(lambda: app.controller.system_prompt == "a\nb")
