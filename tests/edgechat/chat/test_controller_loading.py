"""Questions asked while the model is loaded, and models that can't be."""

import asyncio

from edgechat.chat.entries import Kind, Severity
from edgechat.chat.events import State
from edgechat.errors import NotFoundError
from edgechat.history import Status
from tests.edgechat.chat.turns import saved, texts


async def cut_off(chat, engine, store) -> int:
    """Go on with a conversation whose last answer was cut off, while the model is being loaded.

    Returns:
        The conversation's number.
    """
    number = store.create("Tell me", "Scripted-1B", "").id
    store.add(number, "user", "Tell me", status=Status.COMPLETE)
    store.add(number, "assistant", "Half an", status=Status.PARTIAL)
    chat.start()
    await chat.resume(number)
    return number


async def test_a_question_asked_while_loading_waits(chat, engine, store, wait_until) -> None:
    gate = asyncio.Event()
    engine.loading = [gate]
    chat.start()
    assert chat.send("Are you there?")
    assert chat.send("Hello?")
    await asyncio.sleep(0.01)
    assert engine.requests == []
    assert saved(store, chat.conversation_id) == [
        ("user", "Are you there?", "complete"),
        ("user", "Hello?", "complete"),
    ]
    gate.set()
    await wait_until(lambda: texts(chat, Kind.ASSISTANT) == ["Hello there."])
    assert [m.content for m in engine.requests[0].messages] == ["Are you there?\n\nHello?"]


async def test_a_conversation_that_was_left_while_loading_is_not_answered(chat, engine, wait_until) -> None:
    gate = asyncio.Event()
    engine.loading = [gate]
    chat.start()
    chat.send("Are you there?")
    await chat.new()
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert engine.requests == []
    assert chat.entries == []


async def test_loading_progress_is_shown_while_loading_only(chat, engine, wait_until) -> None:
    engine.loading = [gate := asyncio.Event()]
    chat.start()
    chat.loading_progress(0.5)
    assert chat.status.progress == 0.5
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    chat.loading_progress(0.9)
    assert chat.status.progress is None


async def test_a_model_that_cannot_be_loaded(chat, engine, store, wait_until) -> None:
    engine.loading = [NotFoundError("no model at /nowhere.gguf: name another one")]
    chat.start()
    chat.send("Hello")
    await wait_until(lambda: chat.status.state is State.UNAVAILABLE)
    notice = chat.entries[-1]
    assert (notice.kind, notice.severity) == (Kind.NOTICE, Severity.ERROR)
    assert notice.text == "no model at /nowhere.gguf: name another one"
    assert engine.requests == []

    await chat.new()  # other functions still work, and the next question tries again
    chat.send("Are you there now?")
    await wait_until(lambda: texts(chat, Kind.ASSISTANT) == ["Hello there."])
    assert engine.starts == 2


async def test_regenerate_loads_a_model_that_could_not_be_loaded(chat, engine, wait_until) -> None:
    engine.loading = [NotFoundError("no model")]
    chat.start()
    chat.send("Hello")
    await wait_until(lambda: chat.status.state is State.UNAVAILABLE)
    assert chat.regenerate()
    await wait_until(lambda: texts(chat) == ["Hello", "Hello there."])


async def test_an_answer_asked_for_while_loading_replaces_the_old_one(
    chat, engine, store, wait_until
) -> None:
    engine.loading = [gate := asyncio.Event()]
    number = await cut_off(chat, engine, store)
    assert chat.regenerate()
    assert chat.regenerate(), "again is the same"
    assert saved(store, number)[1][1] == "Half an", "until there is a new one"
    gate.set()
    await wait_until(lambda: texts(chat) == ["Tell me", "Hello there."] and not chat.status.busy)
    assert saved(store, number) == [
        ("user", "Tell me", "complete"),
        ("assistant", "Hello there.", "complete"),
    ]


async def test_where_no_model_comes_the_old_answer_does(chat, engine, store, wait_until) -> None:
    engine.loading = [gate := asyncio.Event(), NotFoundError("no model")]
    number = await cut_off(chat, engine, store)
    chat.regenerate()
    gate.set()
    await wait_until(lambda: chat.status.state is State.UNAVAILABLE)
    assert texts(chat) == ["Tell me", "Half an", "no model"]
    assert chat.regenerate()
    await wait_until(lambda: texts(chat, Kind.ASSISTANT) == ["Hello there."] and not chat.status.busy)
    assert [row[1] for row in saved(store, number)] == ["Tell me", "Hello there."]


async def test_another_question_while_an_answer_is_waited_for(chat, engine, store, wait_until) -> None:
    engine.loading = [gate := asyncio.Event()]
    number = await cut_off(chat, engine, store)
    chat.regenerate()
    chat.send("And then?")
    gate.set()
    await wait_until(lambda: texts(chat) == ["Tell me", "Half an", "And then?", "Hello there."])
    await wait_until(lambda: not chat.status.busy)
    assert [row[1] for row in saved(store, number)] == texts(chat)


async def test_an_answer_that_was_waited_for_is_not_lost_with_its_conversation(chat, engine, store) -> None:
    engine.loading = [asyncio.Event()]
    number = await cut_off(chat, engine, store)
    chat.regenerate()
    await chat.new()
    await chat.resume(number)
    assert texts(chat) == ["Tell me", "Half an"]
