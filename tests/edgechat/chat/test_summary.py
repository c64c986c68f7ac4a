"""What the model wrote of the messages that it no longer sees: shown, kept, handed on, and let go in time."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from edgechat.chat.controller import ChatController
from edgechat.chat.events import Unseen
from edgechat.chat.options import ChatOptions
from edgechat.chat.widgets.status import status_line
from edgechat.chat.widgets.views import SUMMARY_TITLE, SummaryFold
from edgechat.engine.process.messages import Evicted, Finished, Summarizing
from edgechat.history import HistoryStore
from edgechat.records import FinishReason
from tests.edgechat.chat.conftest import TIMINGS
from tests.edgechat.chat.on_screen import screen_text
from tests.edgechat.chat.turns import ask, ready, three_turns

SUMMARY = "They counted: one, then two."


@pytest.fixture
def options() -> ChatOptions:
    return ChatOptions(model="Scripted-1B", summarize=True)


def summed_up(*messages: int, text: str = SUMMARY) -> Evicted:
    return Evicted(1, messages, (), n_tokens=40, n_lost=40, n_pinned=25, n_kept=60, summary=text)


def heard(listener: Any) -> list[tuple[int | None, str]]:
    return [(event.key, event.summary) for event in listener.events if isinstance(event, Unseen)]


async def test_it_stands_at_the_line_and_goes_with_the_next_question(
    chat, engine, listener, wait_until
) -> None:
    chat.set_system_prompt("Be brief.")
    await three_turns(chat, engine, wait_until, [Summarizing(1), summed_up(1, 2), "3"])
    assert heard(listener) == [(chat.entries[1].key, SUMMARY)]
    assert [request.summarize for request in engine.requests] == [True] * 3
    assert {request.summary for request in engine.requests} == {""}
    await ask(chat, wait_until, "Four")
    last = engine.requests[-1]
    assert (last.summary, last.summarized) == (SUMMARY, 3)
    assert last.messages[last.summarized].content == "Two"


async def test_it_is_kept_with_the_conversation(  # noqa: PLR0917
    chat, engine, options, listener, history_path, wait_until
) -> None:
    await three_turns(chat, engine, wait_until, [summed_up(0, 1), "3"])
    number = chat.conversation_id
    store = HistoryStore(history_path)
    again = ChatController(engine, store, options, listener)
    listener.events.clear()
    await again.resume(number)
    assert heard(listener) == [(again.entries[1].key, SUMMARY)]
    again.start()
    await wait_until(lambda: not again.status.busy and again.info is not None)
    await ask(again, wait_until, "Four")
    assert (engine.requests[-1].summary, engine.requests[-1].summarized) == (SUMMARY, 2)
    await again.new()
    await ask(again, wait_until, "Another")
    assert engine.requests[-1].summary == ""
    store.close()


async def test_a_new_summary_takes_its_place(chat, engine, listener, wait_until) -> None:
    later = summed_up(0, 1, 2, 3, text="More.")
    await three_turns(chat, engine, wait_until, [summed_up(0, 1), "3", Summarizing(1), later, "3"])
    assert [text for _, text in heard(listener)] == [SUMMARY, "More."]
    assert chat.store.get(chat.conversation_id).summary == "More."
    assert not chat.status.summing_up


async def test_a_turn_that_sees_all_again_lets_it_go(chat, engine, wait_until) -> None:
    await three_turns(chat, engine, wait_until, [summed_up(0, 1), "3"])
    chat.edit()
    await ask(chat, wait_until, "Four")
    assert chat.store.get(chat.conversation_id).summary == ""


async def test_it_does_not_tell_of_a_question_that_was_replaced(chat, engine, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], [summed_up(0, 1, 2), "2"]]
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Two")
    engine.script = [[gate := asyncio.Event(), "3"]]
    chat.edit()
    chat.send("Three")
    assert heard(listener)[-1] == (chat.entries[1].key, "")
    gate.set()
    await wait_until(lambda: not chat.status.busy)
    assert chat.store.get(chat.conversation_id).summary == ""


async def test_without_the_option_nothing_is_asked_for(chat, engine, wait_until) -> None:
    chat.options = replace(chat.options, summarize=False)
    await three_turns(chat, engine, wait_until, [summed_up(0, 1), "3"])
    await ask(chat, wait_until, "Four")
    assert (engine.requests[-1].summarize, engine.requests[-1].summary) == (False, "")


async def test_the_pinned_part_is_known_from_the_first_answer_on(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    whole = Finished(1, FinishReason.STOP, (1,), TIMINGS, 30, n_pinned=12)
    engine.script = [["1", whole], ["2", msgspec.structs.replace(whole, n_context=60)]]
    await ask(chat, wait_until, "One")
    assert (chat.status.n_pinned, chat.status.n_context) == (12, 30)
    assert chat.entries[-1].receipt.n_pinned == 12
    await ask(chat, wait_until, "Two")
    assert (chat.status.n_pinned, chat.status.n_context) == (12, 60)


async def test_the_status_line_says_what_is_waited_for(chat, engine, listener, wait_until) -> None:
    await three_turns(chat, engine, wait_until, [Summarizing(1), summed_up(0, 1), "3"])
    lines = [status_line(event.status, 100).plain for event in listener.events if hasattr(event, "status")]
    assert any("summing up" in line for line in lines)
    assert "summing up" not in lines[-1]


@pytest.mark.parametrize("width", [60, 100])
async def test_the_fold_on_the_screen(make_app, engine, wait_until, width: int) -> None:
    long = "Oskar found a bottle. " * 12 + "The end\x1b[31m."
    engine.script = [["One."], [summed_up(0, 1, text=long), "Two."]]
    app = make_app()
    chat = app.controller
    async with app.run_test(size=(width, 50)) as pilot:
        await ready(chat, wait_until)
        await ask(chat, wait_until, "One?")
        await ask(chat, wait_until, "Two?")
        await wait_until(lambda: len(app.screen.query(SummaryFold)) == 1)
        await wait_until(lambda: not app.chat._waiting)
        await pilot.pause()
        await wait_until(lambda: f"▸ {SUMMARY_TITLE}"[:40] in screen_text(app))
        assert "The end" not in screen_text(app)
        await pilot.click(SummaryFold)
        await wait_until(lambda: "▾" in screen_text(app) and "The end" in " ".join(screen_text(app).split()))
        assert "\x1b" not in screen_text(app)
        await pilot.click(SummaryFold)
        await wait_until(lambda: "▸" in screen_text(app) and "The end" not in screen_text(app))
