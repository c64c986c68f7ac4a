"""The screens above the chat, and the commands that lead there."""

import asyncio
from typing import Any

import pytest
from textual.widgets import Input, OptionList, TextArea

from edgechat.chat.actions import ACTIONS
from edgechat.chat.appearance import LIGHT
from edgechat.chat.screens.confirm import ConfirmScreen
from edgechat.chat.screens.conversations import ConversationsScreen
from edgechat.chat.screens.help import HelpScreen
from edgechat.chat.screens.system_prompt import SystemPromptScreen
from tests.edgechat.chat.on_screen import ask, ready, said, screen_text, typed


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
        await wait_until(lambda: "● About tides" in screen_text(app))
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


async def test_search_field_has_the_focus(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await pilot.press("ctrl+o")
        await wait_until(lambda: isinstance(app.focused, Input))


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


async def test_an_emptied_system_prompt_leaves_it_to_the_model(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(100, 24), notifications=True) as pilot:
        await pilot.press("f2")
        await wait_until(lambda: isinstance(app.screen, SystemPromptScreen))
        await typed(pilot, "x")
        await pilot.press("f2")
        await wait_until(lambda: "System prompt set." in screen_text(app))
        await pilot.press("f2")
        await wait_until(lambda: isinstance(app.screen, SystemPromptScreen))
        await pilot.press("backspace", "f2")
        await wait_until(lambda: "No system prompt of yours" in screen_text(app))
        assert app.controller.system_prompt is None


@pytest.mark.parametrize("key", ["enter", "ctrl+j", "alt+enter", "shift+enter"])
async def test_new_lines_in_the_system_prompt(make_app, engine, wait_until, key: str) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("f2")
        await wait_until(lambda: isinstance(app.screen, SystemPromptScreen))
        await pilot.press("a", key, "b", "ctrl+s")
        await wait_until(lambda: app.controller.system_prompt == "a\nb")


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
    ("command", "words"),
    [
        ("/again", "There is no question yet."),
        ("/edit", "There is no question yet."),
        ("/copy", "There is no answer yet."),
        ("/details", "There is no answer yet."),
        ("/delete", "This conversation is not saved: there is nothing to delete."),
    ],
)
async def test_what_cannot_be_done_yet_is_said(make_app, wait_until, command: str, words: str) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await typed(pilot, command)
        await pilot.press("enter")
        await wait_until(lambda: [toast.message for toast in app._notifications] == [words])


@pytest.mark.parametrize("key", ["ctrl+r", "f4"])
async def test_what_cannot_be_done_in_mid_answer_is_said(make_app, engine, wait_until, key: str) -> None:
    engine.script = [["Half", gate := asyncio.Event()]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        app.controller.send("Tell me")
        await wait_until(lambda: app.controller.last_answer == "Half")
        await pilot.press(key)
        words = "Still answering. Esc stops it."
        await wait_until(lambda: [toast.message for toast in app._notifications] == [words])
        gate.set()
        await ready(app, wait_until)


async def test_the_palette_says_the_keys(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(app, wait_until)
        await pilot.press("ctrl+p")
        await wait_until(lambda: "A running answer is saved  (Ctrl+Q)" in screen_text(app))
        await wait_until(lambda: "what there is of it stays  (Esc)" in screen_text(app))


async def test_what_pops_up_covers_nothing_that_is_typed(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await ready(app, wait_until)
        await typed(pilot, "/nosuch")
        await pilot.press("enter")
        await wait_until(lambda: "There is no command" in screen_text(app))

        def toasts_are_above() -> bool:
            toasts = app.screen.query("Toast")
            return bool(toasts) and all(toast.region.bottom <= app.chat.prompt.region.y for toast in toasts)

        await wait_until(toasts_are_above)
        await wait_until(lambda: "› /nosuch" in screen_text(app))


@pytest.mark.parametrize("height", [8, 12, 24])
async def test_the_greeting_is_read_from_its_top(make_app, wait_until, height: int) -> None:
    app = make_app()
    async with app.run_test(size=(40, height)):
        await ready(app, wait_until)
        await wait_until(lambda: screen_text(app).split()[:1] == ["edgechat"])
        assert app.chat.transcript.follows_end


async def test_what_the_keys_do_follows_the_size(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await ready(app, wait_until)
        await wait_until(lambda: "Ctrl+J new line" in screen_text(app))
        await pilot.resize_terminal(40, 12)
        await wait_until(lambda: "Enter send  F1 help" in screen_text(app))
        await pilot.resize_terminal(100, 24)
        await wait_until(lambda: "Ctrl+J new line" in screen_text(app))


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
