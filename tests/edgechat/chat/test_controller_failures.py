"""Answers that are stopped, crash or are refused: what is kept of them, and what is said."""

import asyncio

from edgechat.chat.entries import Kind, Severity
from edgechat.chat.events import State
from edgechat.engine.process.messages import Refused
from edgechat.errors import EngineCrashedError
from edgechat.history import HistoryError
from tests.edgechat.chat.turns import agrees, ask, ready, saved, texts

CRASH = EngineCrashedError("the engine was killed (signal 9): ask again, it starts anew")


async def test_stop_keeps_what_there_is(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["One, ", "two", asyncio.Event(), ", three"]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One, two")
    assert not chat.send("Not now")
    assert not chat.regenerate()
    assert chat.edit() is None
    await chat.stop()
    assert chat.status.state is State.IDLE
    assert saved(store, chat.conversation_id)[1] == ("assistant", "One, two", "stopped")
    assert chat.entries[-1].timings is not None, "the engine's own Finished was waited for"
    engine.script = [["fine"]]
    await ask(chat, wait_until, "Go on")
    assert [m.content for m in engine.requests[-1].messages] == ["Count", "One, two", "Go on"]
    assert agrees(chat, listener)


async def test_stop_before_the_first_word(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[asyncio.Event(), "never"], ["now"]]
    chat.send("Count")
    await wait_until(lambda: engine.running)
    await asyncio.sleep(0)
    await chat.stop()
    assert "Ctrl+R" in chat.entries[-1].text
    assert saved(store, chat.conversation_id) == [("user", "Count", "complete")]
    await ask(chat, wait_until, "Again")
    assert [m.content for m in engine.requests[-1].messages] == ["Count\n\nAgain"]


async def test_an_engine_that_does_not_stop_is_left(chat, engine, store, wait_until, monkeypatch) -> None:
    monkeypatch.setattr("edgechat.chat.controller.STOP_PATIENCE_S", 0.01)
    await ready(chat, wait_until)
    engine.deaf = True
    engine.script = [["One", asyncio.Event()]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One")
    await chat.stop()
    assert engine.running[0].left
    assert saved(store, chat.conversation_id)[1] == ("assistant", "One", "stopped")


async def test_a_second_stop_does_not_wait(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.deaf = True
    engine.script = [["One", asyncio.Event()]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One")
    first = asyncio.create_task(chat.stop())
    await wait_until(lambda: chat.status.state is State.STOPPING)
    await chat.stop()
    await first
    assert chat.status.state is State.IDLE


async def test_stop_with_nothing_running(chat, wait_until) -> None:
    await chat.stop()
    await ready(chat, wait_until)
    await chat.stop()
    assert chat.status.state is State.IDLE


async def test_a_crash_costs_one_answer(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["The first ", "words", CRASH], ["fine"]]
    await ask(chat, wait_until, "Tell me")
    notices = [e for e in chat.entries if e.kind is Kind.NOTICE]
    assert [(n.text, n.severity) for n in notices] == [
        (f"{CRASH}. What there is of the answer is kept: Ctrl+R asks again.", Severity.ERROR)
    ]
    assert saved(store, chat.conversation_id)[1] == ("assistant", "The first words", "failed")
    await ask(chat, wait_until, "Go on")
    assert [m.content for m in engine.requests[-1].messages] == ["Tell me", "The first words", "Go on"]
    assert texts(chat, Kind.ASSISTANT) == ["The first words", "fine"]
    assert agrees(chat, listener)


async def test_a_crash_before_the_first_word(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[CRASH], ["fine"]]
    await ask(chat, wait_until, "Tell me")
    assert texts(chat) == ["Tell me", f"{CRASH}. Your question is kept: Ctrl+R asks again."]
    assert chat.regenerate()
    await wait_until(lambda: texts(chat) == ["Tell me", "fine"])
    assert saved(store, chat.conversation_id) == [
        ("user", "Tell me", "complete"),
        ("assistant", "fine", "complete"),
    ]


async def test_a_regenerated_answer_comes_back_when_the_new_one_fails(
    chat, engine, store, listener, wait_until
) -> None:
    await ready(chat, wait_until)
    engine.script = [["first"], [CRASH]]
    await ask(chat, wait_until, "Tell me")
    chat.regenerate()
    await wait_until(lambda: chat.entries[-1].text.startswith(str(CRASH)))
    assert texts(chat) == ["Tell me", "first", f"{CRASH}. Your question is kept: Ctrl+R asks again."]
    assert [row[1] for row in saved(store, chat.conversation_id)] == ["Tell me", "first"]
    assert agrees(chat, listener)


async def test_a_refused_request_is_one_line(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[Refused(1, 5, "9,000 tokens do not fit 8,192")], ["fine"]]
    await ask(chat, wait_until, "Tell me")
    assert texts(chat) == [
        "9,000 tokens do not fit 8,192. The question was not sent: it is in the prompt again."
    ]
    assert chat.entries[-1].severity is Severity.ERROR
    await ask(chat, wait_until, "Again")
    assert texts(chat, Kind.ASSISTANT) == ["fine"]


async def test_a_bug_in_an_answer_costs_that_answer(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["a", ZeroDivisionError("oops")], ["fine"]]
    await ask(chat, wait_until, "Tell me")
    assert "report" in chat.entries[-1].text
    await ask(chat, wait_until, "Again")
    assert texts(chat, Kind.ASSISTANT) == ["a", "fine"]


async def test_that_saving_works_again_is_told(chat, engine, store, wait_until, monkeypatch) -> None:
    """And what was not saved until then is."""

    def full(*_: object, **__: object) -> None:
        raise HistoryError("the disk is full")

    await ready(chat, wait_until)
    engine.script = [["1"], ["2"], ["3"]]
    with monkeypatch.context() as patch:
        patch.setattr(store, "add", full)
        await ask(chat, wait_until, "One")
        await ask(chat, wait_until, "Two")
    await ask(chat, wait_until, "Three")
    assert texts(chat, Kind.NOTICE) == [
        "the disk is full. What follows may not be saved.",
        "Saving works again.",
    ]
    assert [row[1] for row in saved(store, chat.conversation_id)] == ["One", "1", "Two", "2", "Three", "3"]
