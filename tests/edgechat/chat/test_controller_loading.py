"""Questions asked while the model is loaded, and models that can't be."""

import asyncio

from edgechat.chat.entries import Kind, Severity
from edgechat.chat.events import State
from edgechat.errors import NotFoundError
from tests.edgechat.chat.turns import saved, texts


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
