"""A question that is edited: its exchange stays until another question takes its place."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from edgechat.chat.entries import Kind
from edgechat.chat.events import State
from tests.edgechat.chat import on_screen
from tests.edgechat.chat.on_screen import said, screen_text, typed
from tests.edgechat.chat.turns import agrees, ask, ready, saved, texts


def rows(path: Path) -> list[tuple[Any, ...]]:
    """All that the database has of conversations and messages."""
    with sqlite3.connect(path) as db:
        found = [*db.execute("SELECT * FROM conversations"), *db.execute("SELECT * FROM messages")]
    db.close()
    return found


async def test_nothing_changes_until_it_is_sent(chat, engine, history_path, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], ["2"], ["3"]]
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Tvo")
    before = rows(history_path)
    assert chat.edit() == "Tvo"
    assert chat.status.editing
    assert texts(chat) == ["One", "1", "Tvo", "2"]
    assert rows(history_path) == before
    await ask(chat, wait_until, "Two")
    assert not chat.status.editing
    assert texts(chat) == ["One", "1", "Two", "3"]
    assert [row[1] for row in saved(chat.store, chat.conversation_id)] == ["One", "1", "Two", "3"]
    assert [m.content for m in engine.requests[-1].messages] == ["One", "1", "Two"]
    assert agrees(chat, listener)


async def test_a_question_that_is_kept(chat, engine, history_path, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    before = rows(history_path)
    chat.edit()
    chat.keep()
    assert not chat.status.editing
    assert rows(history_path) == before
    await ask(chat, wait_until, "Two")
    assert [m.content for m in engine.requests[-1].messages] == ["One", "Hello there.", "Two"]
    assert [row[1] for row in saved(chat.store, chat.conversation_id)] == texts(chat)
    assert len(texts(chat)) == 4


async def test_leaving_keeps_it(chat, history_path, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    before, number = rows(history_path), chat.conversation_id
    chat.edit()
    await chat.new()
    assert not chat.status.editing
    assert rows(history_path) == before
    await chat.resume(number)
    chat.edit()
    await chat.resume(number)
    assert not chat.status.editing
    assert texts(chat) == ["One", "Hello there."]
    chat.edit()
    await chat.close()
    assert rows(history_path) == before


async def test_answering_again_ends_it(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], ["2"]]
    await ask(chat, wait_until, "One")
    chat.edit()
    chat.regenerate()
    assert not chat.status.editing
    await wait_until(lambda: texts(chat) == ["One", "2"])


async def test_no_question_no_editing(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    assert chat.edit() is None
    engine.script = [["Half", asyncio.Event()]]
    chat.send("One")
    await wait_until(lambda: chat.status.state is State.STREAMING)
    assert chat.edit() is None
    assert not chat.status.editing
    await chat.stop()


@pytest.mark.parametrize("sent", [True, False])
async def test_a_waiting_question_is_not_answered_meanwhile(chat, engine, wait_until, sent: bool) -> None:
    engine.loading = [gate := asyncio.Event()]
    chat.start()
    chat.send("Helo?")
    assert chat.edit() == "Helo?"
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert engine.requests == []
    if sent:
        chat.send("Hello?")
    else:
        chat.keep()
    await wait_until(lambda: texts(chat, Kind.ASSISTANT) == ["Hello there."])
    assert [m.content for m in engine.requests[0].messages] == ["Hello?" if sent else "Helo?"]


async def test_an_answer_that_is_waited_for_comes_back(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    engine.loading = [gate := asyncio.Event()]
    chat.start()
    chat.regenerate()
    assert texts(chat) == ["One"]
    chat.edit()
    assert texts(chat) == ["One", "Hello there."]
    chat.keep()
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert texts(chat) == ["One", "Hello there."]
    assert len(engine.requests) == 1


@pytest.mark.parametrize("way", ["escape", "ctrl+u"])
async def test_keys_that_keep_it(make_app, engine, history_path, wait_until, way: str) -> None:
    engine.script = [["alpha"], ["bravo"]]
    app = make_app()
    async with app.run_test() as pilot:
        await on_screen.ready(app, wait_until)
        await on_screen.ask(app, pilot, wait_until, "Tell me")
        before = rows(history_path)
        await pilot.press("f4")
        await wait_until(lambda: "Enter replace the question  Esc keep it" in screen_text(app))
        await wait_until(lambda: "alpha" in screen_text(app))
        await typed(pilot, " more")
        await pilot.press(way)
        await wait_until(lambda: app.chat.prompt.area.text == "" and not app.controller.status.editing)
        await wait_until(lambda: "Enter send" in screen_text(app))
        assert rows(history_path) == before
        await on_screen.ask(app, pilot, wait_until, "And then?")
        assert said(app) == ["Tell me", "alpha", "And then?", "bravo"]
        assert [m.content for m in engine.requests[-1].messages] == ["Tell me", "alpha", "And then?"]


async def test_a_command_ends_it(make_app, engine, wait_until) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await on_screen.ready(app, wait_until)
        await on_screen.ask(app, pilot, wait_until, "Hi")
        await pilot.press("f4", "backspace", "backspace")
        await typed(pilot, "/copy")
        await pilot.press("enter")
        await wait_until(lambda: app.clipboard == "Hello there.")
        assert not app.controller.status.editing
