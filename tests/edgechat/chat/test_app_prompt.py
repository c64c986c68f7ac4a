"""What is typed, pasted and brought back in the prompt."""

import asyncio

import pytest
from textual import events

from edgechat.chat.entries import Kind
from edgechat.chat.events import State
from edgechat.chat.widgets.welcome import Example
from edgechat.history import Status
from tests.edgechat.chat.on_screen import ready, said, screen_text, typed


async def test_letters_typed_after_enter_stay(make_app, engine, wait_until) -> None:
    """The keys of a fast typist are all there before the first is handled."""
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


async def test_letters_typed_while_the_app_is_drawn_stay_in_order(make_app, wait_until, monkeypatch) -> None:
    """Some were kept, and others wait in the queue, when the prompt is there."""
    app = make_app()
    drawn = app.on_ready

    async def between(_: object) -> None:
        for key in "abc":
            await app.on_event(events.Key(key, key))
        for key in "def":
            app.post_message(events.Key(key, key))
        await drawn()

    monkeypatch.setattr(type(app), "on_ready", between)
    async with app.run_test():
        await ready(app, wait_until)
        await wait_until(lambda: app.chat.prompt.area.text == "abcdef")


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_new_lines(make_app, engine, wait_until, key: str) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("a", key, "b", "enter")
        await wait_until(lambda: said(app, Kind.USER) == ["a\nb"])


async def test_alt_enter_as_terminals_send_it(make_app) -> None:
    """Escape and Return, in one piece; without the first it is Enter."""
    from textual._xterm_parser import XTermParser

    make_app()
    for sent, keys in (("\x1b\r", ["alt+enter"]), ("\r", ["enter"]), ("a\x1b\rb", ["a", "alt+enter", "b"])):
        assert [event.key for event in XTermParser().feed(sent)] == keys


async def test_a_long_question_leaves_room_in_a_low_terminal(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(40, 12)) as pilot:
        await ready(app, wait_until)
        await pilot.press(*["a", "ctrl+j"] * 20)
        await wait_until(lambda: app.chat.prompt.area.size.height == 3)
        await wait_until(lambda: "ready" in screen_text(app).split("\n")[-1])
        await wait_until(lambda: app.chat.transcript.outer_size.height == 5)
        assert app.chat.prompt.area.size.height == 3
        assert app.screen.max_scroll_y == 0


async def test_the_prompt_grows_to_eight_lines(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test(size=(80, 30)) as pilot:
        area = app.chat.prompt.area
        await wait_until(lambda: area.size.height == 1)
        await pilot.press(*["a", "ctrl+j"] * 3)
        await wait_until(lambda: area.size.height == 4)
        await pilot.press(*["a", "ctrl+j"] * 20)
        await wait_until(lambda: area.size.height == 8)
        await pilot.press(*["a", "ctrl+j"] * 5)
        await pilot.pause()
        assert area.size.height == 8


async def test_a_long_paste(make_app, engine, wait_until) -> None:
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


async def test_keys_that_come_at_once_act_in_their_order(make_app, wait_until) -> None:
    """Moves and deletions too, as in a burst from a terminal."""
    app = make_app()
    async with app.run_test() as pilot:
        await typed(pilot, "old")
        await pilot.pause()
        for key in ("ctrl+u", "a", "c", "left", "b", "right", "x", "backspace", "d"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await wait_until(lambda: app.chat.prompt.area.text == "abcd")


async def test_emptying_the_prompt(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await typed(pilot, "one\ntwo")
        await pilot.press("ctrl+u")
        assert app.chat.prompt.area.text == ""
        await pilot.press("ctrl+z")
        assert app.chat.prompt.area.text == "one\ntwo"


async def test_an_example_fills_the_prompt(make_app, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.pause()
        await pilot.click(Example)
        await wait_until(lambda: app.chat.prompt.area.text.startswith("Explain how tides"))
