"""What the person sees while a dead engine is being started again."""

import asyncio

from edgechat.chat.engine import EngineState
from edgechat.chat.entries import Kind, Severity
from edgechat.chat.events import State
from edgechat.errors import EngineCrashedError
from tests.edgechat.chat.turns import ask, ready, texts

CRASH = EngineCrashedError("the engine was killed (signal 9): ask again")


async def test_a_question_waits_for_the_engine(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    chat.engine_state(EngineState.STARTING)
    assert chat.status.state is State.RESTARTING
    chat.loading_progress(0.5)
    assert chat.status.progress == 0.5
    assert chat.send("Are you there?")
    await asyncio.sleep(0.01)
    assert engine.requests == []
    chat.engine_state(EngineState.READY)
    await wait_until(lambda: texts(chat, Kind.ASSISTANT) == ["Hello there."])
    assert (chat.status.state, chat.status.progress) == (State.IDLE, None)


async def test_a_death_in_mid_answer(chat, engine, wait_until) -> None:
    engine.script = [["Half", gate := asyncio.Event(), CRASH]]
    await ready(chat, wait_until)
    chat.send("Go")
    await wait_until(lambda: chat.status.state is State.STREAMING)
    chat.engine_state(EngineState.STARTING)
    assert chat.status.state is State.STREAMING, "until the answer has ended"
    gate.set()
    await wait_until(lambda: chat.status.state is State.RESTARTING)
    chat.engine_state(EngineState.READY)
    assert chat.status.state is State.IDLE


async def test_given_up(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    chat.engine_state(EngineState.STARTING)
    chat.send("Are you there?")
    engine.loading = [EngineCrashedError("the engine died (6 times in a row: given up)")]
    chat.engine_state(EngineState.ENDED)
    await wait_until(lambda: texts(chat, Kind.NOTICE) == ["the engine died (6 times in a row: given up)"])
    assert chat.status.state is State.UNAVAILABLE
    await ask(chat, wait_until, "And now?")


async def test_the_first_load_knows_better(chat, engine, wait_until) -> None:
    engine.loading = [gate := asyncio.Event()]
    chat.start()
    for state in EngineState:
        chat.engine_state(state)
        assert chat.status.state is State.LOADING
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)


async def test_safe_mode_is_a_warning(make_app, engine, wait_until) -> None:
    told = {}

    def make(**listeners):
        told.update(listeners)
        return engine

    app = make_app(engine=make)
    async with app.run_test():
        await wait_until(lambda: app.controller.status.state is State.IDLE)
        told["on_note"]("This model has no chat template.")
        told["on_warning"]("It goes on in safe mode.")
        told["on_state"](EngineState.STARTING)
        assert [e.severity for e in app.controller.entries] == [Severity.INFORMATION, Severity.WARNING]
        assert app.controller.status.state is State.RESTARTING
