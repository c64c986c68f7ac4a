"""What the model no longer sees: said when it goes, kept with the conversation, taken back in time."""

import asyncio
from typing import Any

import pytest

from edgechat.chat.controller import ChatController
from edgechat.chat.entries import Entry, Kind
from edgechat.chat.events import Unseen
from edgechat.chat.prompt import build_prompt
from edgechat.chat.widgets.views import UnseenLine
from edgechat.engine.process.messages import Evicted, Note
from edgechat.history import HistoryStore
from tests.edgechat.chat.on_screen import screen_text
from tests.edgechat.chat.turns import ask, ready, texts, three_turns

NOTE = Note(1, "window", "The context is full: the model no longer sees 2 messages (40 tokens).")


def evicted(*messages: int, n_tokens: int = 40, cut: tuple[int, ...] = ()) -> Evicted:
    return Evicted(1, messages, cut, n_tokens=n_tokens, n_lost=40, n_pinned=5, n_kept=60)


def heard(listener: Any) -> list[tuple[int | None, int]]:
    return [(e.key, e.n_messages) for e in listener.events if isinstance(e, Unseen)]


async def test_the_line_stands_below_the_last_message_that_went(chat, engine, listener, wait_until) -> None:
    await three_turns(chat, engine, wait_until, ["3", NOTE, evicted(0, 1), "3", evicted(0, 1, 2, 3), "3"])
    keys = [e.key for e in chat.entries]
    assert heard(listener) == [(keys[1], 2), (keys[3], 4)]
    assert texts(chat, Kind.NOTICE) == [], "the line says it"
    assert (chat.status.n_pinned, chat.entries[-1].receipt.n_lost) == (5, 40)


async def test_the_system_prompt_is_no_entry(chat, engine, listener, wait_until) -> None:
    chat.set_system_prompt("Be brief.")
    await three_turns(chat, engine, wait_until, [evicted(1, 2), "3"])
    assert heard(listener) == [(chat.entries[1].key, 2)]


async def test_where_only_a_part_of_a_message_went_a_notice_says_it(
    chat, engine, listener, wait_until
) -> None:
    note = Note(1, "window", "The context is full: the model no longer sees the beginning of this answer.")
    await three_turns(chat, engine, wait_until, ["3", note, evicted(cut=(5,)), "3"])
    assert heard(listener) == []
    assert texts(chat, Kind.NOTICE) == [note.text]


async def test_what_nothing_went_of_is_said_too(chat, engine, wait_until) -> None:
    loop = Note(1, "window", "The answer repeats itself, word for word: it was ended.")
    await three_turns(chat, engine, wait_until, ["3", NOTE, evicted(0, 1), "3", loop])
    assert texts(chat, Kind.NOTICE) == [loop.text]


async def test_a_turn_that_sees_all_again_takes_the_line_away(chat, engine, listener, wait_until) -> None:
    await three_turns(chat, engine, wait_until, [evicted(0, 1), "3"])
    engine.script = [[evicted(0, 1, n_tokens=0), "4"], ["5"]]
    await ask(chat, wait_until, "Four")
    assert len(heard(listener)) == 1, "still the same"
    chat.edit()
    await ask(chat, wait_until, "Five")
    assert heard(listener)[1:] == [(None, 0)]
    assert chat.status.n_pinned == 0
    assert chat.store.get(chat.conversation_id).unseen_until == 0


async def test_a_question_that_is_replaced_takes_the_line_along(chat, engine, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], [evicted(0, 1, 2), "2"]]
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Two")
    keys = [e.key for e in chat.entries]
    engine.script = [[gate := asyncio.Event(), "3"]]
    chat.edit()
    chat.send("Three")
    assert heard(listener) == [(keys[2], 3), (keys[1], 2)]
    gate.set()
    await wait_until(lambda: not chat.status.busy)


async def test_it_is_saved_with_the_conversation(  # noqa: PLR0917
    chat, engine, options, listener, history_path, wait_until
) -> None:
    await three_turns(chat, engine, wait_until, [evicted(0, 1), "3"])
    number = chat.conversation_id
    store = HistoryStore(history_path)
    again = ChatController(engine, store, options, listener)
    listener.events.clear()
    used = store.get(number).updated
    await again.resume(number)
    assert heard(listener) == [(again.entries[1].key, 2)]
    assert store.get(number).updated == used, "looking at it is no use of it"
    assert (again.status.n_pinned, again.status.n_context) == (5, chat.status.n_context)
    await again.new()
    assert again.status.n_pinned == 0
    store.close()


def test_joined_questions_are_one_message() -> None:
    entries = [
        Entry(1, Kind.USER, "One"),
        Entry(2, Kind.NOTICE, "Trouble"),
        Entry(3, Kind.USER, "One, again"),
        Entry(4, Kind.ASSISTANT, "1"),
        Entry(5, Kind.USER, "Two"),
    ]
    prompt = build_prompt(entries, "Be brief.")
    assert prompt.keys == ((), (1, 3), (4,), (5,))
    assert [prompt.last_of(which) for which in ([], [0], [0, 1], [1, 2], [1, 2, 3, 4])] == [
        None,
        None,
        3,
        4,
        5,
    ]


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (100, "the model no longer sees what is above this line: 2 messages"),
        (60, "no longer seen by the model: 2 messages"),
    ],
)
async def test_the_line_on_the_screen(make_app, engine, wait_until, width: int, words: str) -> None:
    engine.script = [["One."], ["Two.", evicted(0, 1), " More."], [evicted(0, 1, 2, 3), "Three."], ["Four."]]
    app = make_app()
    chat = app.controller
    async with app.run_test(size=(width, 50)) as pilot:

        async def lines(n: int) -> list[str]:
            await wait_until(lambda: len(app.screen.query(UnseenLine)) == n)
            await wait_until(lambda: not app.chat._waiting)
            await pilot.pause()
            return [line.strip() for line in screen_text(app).split("\n")]

        await ready(chat, wait_until)
        await ask(chat, wait_until, "One?")
        await ask(chat, wait_until, "Two?")
        shown = await lines(1)
        assert [w for line in shown if (w := line.strip("─ ▎█▌▄▀")) in {"One.", "Two. More.", words}] == [
            "One.",
            words,
            "Two. More.",
        ]
        await ask(chat, wait_until, "Three?")
        await wait_until(lambda: "4 messages" in screen_text(app))
        assert len(app.screen.query(UnseenLine)) == 1
        number = chat.conversation_id
        await chat.new()
        await lines(0)
        await chat.resume(number)
        await wait_until(lambda: "4 messages" in screen_text(app))
        await ask(chat, wait_until, "Four?")
        await lines(0)
