"""Conversations that are begun, gone on with, deleted and saved."""

import asyncio

import pytest

from edgechat.chat.entries import Kind
from edgechat.chat.events import State
from edgechat.engine.process.messages import Prefilled
from edgechat.history import ConversationGone, Status
from tests.edgechat.chat.turns import agrees, ask, ready, saved, texts


async def test_new_and_resume(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    chat.set_system_prompt("Be brief.")
    await ask(chat, wait_until, "One")
    first, request = chat.conversation_id, engine.requests[-1]
    await chat.new()
    assert (chat.entries, chat.conversation_id, chat.system_prompt) == ([], None, None)
    assert chat.status.n_context == 0
    assert engine.closed is False
    await ask(chat, wait_until, "Two")
    assert engine.requests[-1].conversation != request.conversation
    assert chat.conversation_id != first

    await chat.resume(first)
    assert texts(chat) == ["One", "Hello there."]
    assert (chat.system_prompt, chat.status.title, chat.status.n_context) == ("Be brief.", "One", 5)
    await ask(chat, wait_until, "Three")
    assert [m.content for m in engine.requests[-1].messages] == ["Be brief.", "One", "Hello there.", "Three"]
    assert len(saved(store, first)) == 4
    assert agrees(chat, listener)


async def test_resuming_an_answer_that_a_killed_app_left(chat, engine, store, wait_until) -> None:
    conversation = store.create("Old", "starter", None)
    store.add(conversation.id, "user", "Tell me", status=Status.COMPLETE)
    store.add(conversation.id, "assistant", "The first wo", status=Status.PARTIAL)
    await ready(chat, wait_until)
    await chat.resume(conversation.id)
    assert chat.entries[1].status is Status.PARTIAL
    await ask(chat, wait_until, "Go on")
    assert [m.content for m in engine.requests[-1].messages] == ["Tell me", "The first wo", "Go on"]


async def test_an_answer_that_nobody_counted_leaves_the_meter_as_it_was(chat, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    number, in_use = chat.conversation_id, chat.status.n_context
    store.add(number, "user", "Two", status=Status.COMPLETE)
    store.add(number, "assistant", "The first wo", status=Status.PARTIAL)
    await chat.new()
    assert chat.status.n_context == 0
    await chat.resume(number)
    assert chat.status.n_context == in_use > 0


async def test_resuming_a_deleted_conversation(chat, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    with pytest.raises(ConversationGone):
        await chat.resume(999)
    assert texts(chat) == ["One", "Hello there."]


async def test_a_conversation_keeps_its_name_in_the_engine(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    first = chat.conversation_id
    await chat.new()
    await ask(chat, wait_until, "Two")
    await chat.resume(first)
    await ask(chat, wait_until, "Three")
    names = [request.conversation for request in engine.requests]
    assert names[0] == names[2] != names[1]
    assert all(names)


async def test_switching_stops_and_saves_the_running_answer(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["One, ", asyncio.Event()]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One, ")
    conversation = chat.conversation_id
    await chat.new()
    assert saved(store, conversation)[1] == ("assistant", "One, ", "stopped")
    assert chat.entries == []
    assert chat.status.state is State.IDLE


async def test_deleting(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    first = chat.conversation_id
    await chat.new()
    await ask(chat, wait_until, "Two")
    await chat.delete(first)
    assert texts(chat) == ["Two", "Hello there."]
    await chat.delete(chat.conversation_id)
    assert engine.forgotten == [request.conversation for request in engine.requests]
    assert chat.entries == []
    assert store.search("") == []


async def test_a_conversation_that_another_app_deleted_is_saved_anew(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    first = chat.conversation_id
    store.delete(first)
    await ask(chat, wait_until, "Two")
    assert chat.conversation_id != first
    assert texts(chat, Kind.NOTICE) == [
        "This conversation was deleted elsewhere while it was open: it is saved anew."
    ]
    assert [row[1] for row in saved(store, chat.conversation_id)] == [
        "One",
        "Hello there.",
        "Two",
        "Hello there.",
    ]


async def test_a_conversation_deleted_in_mid_answer_is_saved_anew(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    gate = asyncio.Event()
    engine.script = [["One, ", gate, "two"]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One, ")
    store.delete(chat.conversation_id)
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert [row[1:] for row in saved(store, chat.conversation_id)] == [
        ("Count", "complete"),
        ("One, two", "complete"),
    ]


async def test_a_streaming_answer_is_saved_while_it_streams(
    chat, engine, store, wait_until, monkeypatch
) -> None:
    monkeypatch.setattr("edgechat.chat.saving.INTERVAL_S", 0.01)
    await ready(chat, wait_until)
    gate = asyncio.Event()
    engine.script = [[Prefilled(1, 40, 40, 0), "One, ", "two, ", gate, "three"]]
    chat.send("Count")
    await wait_until(
        lambda: saved(store, chat.conversation_id)[1:] == [("assistant", "One, two, ", "partial")]
    )
    assert chat.status.n_context == 42  # as the meter would show it if the app were killed now
    await wait_until(lambda: store.messages(chat.conversation_id)[1].n_context == 42)
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert saved(store, chat.conversation_id)[1] == ("assistant", "One, two, three", "complete")


async def test_a_store_that_fails_costs_no_answer(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    store.close()
    await ask(chat, wait_until, "Two")
    await ask(chat, wait_until, "Three")
    assert texts(chat, Kind.ASSISTANT) == ["Hello there."] * 3
    (notice,) = texts(chat, Kind.NOTICE)
    assert "not be saved" in notice


async def test_closing_saves_the_running_answer(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["One, ", asyncio.Event()]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One, ")
    chat.save_now()
    assert saved(store, chat.conversation_id)[1] == ("assistant", "One, ", "stopped")
    await chat.close()
    assert engine.closed
    assert saved(store, chat.conversation_id)[1] == ("assistant", "One, ", "stopped")
