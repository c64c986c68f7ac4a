"""The turn's state machine, without a terminal, on a scripted engine."""

import asyncio

import pytest

from edgechat.chat.controller import ChatController
from edgechat.chat.entries import Kind
from edgechat.chat.events import State, StatusChanged
from edgechat.chat.options import ChatOptions
from edgechat.engine.process.messages import Finished, Note, Prefilled, Refused
from edgechat.history import Status
from edgechat.records import FinishReason, Speculation
from tests.edgechat.chat.conftest import TIMINGS
from tests.edgechat.chat.turns import agrees, ask, ready, saved, texts


async def test_a_turn(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    assert (chat.status.model, chat.status.context_size) == ("Scripted-1B", 8192)
    await ask(chat, wait_until, "Say hello to me")
    assert texts(chat) == ["Say hello to me", "Hello there."]
    assert listener.grown() == "Hello there."
    states = [e.status.state for e in listener.events if isinstance(e, StatusChanged)]
    changes = [s for s, before in zip(states, [None, *states], strict=False) if s is not before]
    assert changes == [State.IDLE, State.PREFILLING, State.STREAMING, State.IDLE]
    assert saved(store, chat.conversation_id) == [
        ("user", "Say hello to me", "complete"),
        ("assistant", "Hello there.", "complete"),
    ]
    answer = store.messages(chat.conversation_id)[1]
    assert (answer.n_tokens, answer.n_context, answer.timings.ttft_s) == (2, 6, 0.312)
    assert (answer.model, store.get(chat.conversation_id).title) == ("Scripted-1B", "Say hello to me")
    status = chat.status
    assert (status.n_context, status.ttft_s, status.tokens_per_s) == (6, 0.312, 40.0)
    assert agrees(chat, listener)


async def test_the_whole_conversation_is_the_next_prompt(chat, engine, wait_until) -> None:
    chat.set_system_prompt("Be brief.")
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Two")
    assert [(m.role, m.content) for m in engine.requests[1].messages] == [
        ("system", "Be brief."),
        ("user", "One"),
        ("assistant", "Hello there."),
        ("user", "Two"),
    ]
    assert engine.requests[0].conversation == engine.requests[1].conversation != ""


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
async def test_nothing_is_no_question(chat, wait_until, text: str) -> None:
    await ready(chat, wait_until)
    assert not chat.send(text)
    assert chat.entries == []


async def test_half_a_surrogate_pair_is_no_trouble(chat, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "half \ud83d")
    assert saved(store, chat.conversation_id)[0][1] == "half ?"


async def test_prefill_progress(chat, engine, listener, wait_until) -> None:
    await ready(chat, wait_until)
    gate = asyncio.Event()
    engine.script = [[Prefilled(1, 512, 2048, 0), gate, Prefilled(1, 2048, 2048, 0), "a"]]
    chat.send("Read this")
    await wait_until(lambda: chat.status.progress == 0.25)
    assert chat.status.n_context == 512
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert chat.status.progress is None


async def test_an_empty_answer_is_said(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[]]
    await ask(chat, wait_until, "Tell me")
    assert "nothing to say" in chat.entries[-1].text
    assert len(saved(store, chat.conversation_id)) == 1


async def test_an_answer_cut_at_the_limit_says_so(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["a", Finished(1, FinishReason.LENGTH, (1,), TIMINGS, 8192)]]
    await ask(chat, wait_until, "Tell me")
    assert chat.entries[-1].status is Status.LENGTH
    assert chat.status.n_context == 8192


async def test_an_answer_cut_in_its_first_character_says_so(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[Finished(1, FinishReason.LENGTH, (240,), TIMINGS, 4)]]
    await ask(chat, wait_until, "A smile")
    assert chat.entries[-1].text.startswith("The limit of tokens cut the answer before its first character")
    engine.script = [[Finished(1, FinishReason.LENGTH, (), TIMINGS, 4)]]
    await ask(chat, wait_until, "More")
    assert chat.entries[-1].text.startswith("There is no room for an answer")


async def test_the_status_has_what_drafting_did_for_the_last_answer(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    helped = Speculation(
        steps=2, tokens=4, drafted=3, accepted=2, tokens_per_step=2, speedup=1.5, predicted=1.4
    )
    engine.script = [["a", Finished(1, FinishReason.STOP, (1,), TIMINGS, 9, helped)], ["b"]]
    await ask(chat, wait_until, "Tell me")
    assert chat.status.speculation == helped
    await ask(chat, wait_until, "Again")
    assert chat.status.speculation is None


async def test_a_note_is_said_once_a_conversation(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[Note(1, "no_template", "plain completion"), "a"]]
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Two")
    assert texts(chat, Kind.NOTICE) == ["plain completion"]
    await chat.new()
    await ask(chat, wait_until, "Three")
    assert texts(chat, Kind.NOTICE) == ["plain completion"]


async def test_regenerate_replaces_the_answer(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["first"], ["second"]]
    await ask(chat, wait_until, "Tell me")
    assert chat.regenerate()
    await wait_until(lambda: texts(chat) == ["Tell me", "second"] and not chat.status.busy)
    assert [m.content for m in engine.requests[1].messages] == ["Tell me"]
    assert [row[1] for row in saved(store, chat.conversation_id)] == ["Tell me", "second"]
    assert agrees(chat, listener)


async def test_nothing_to_regenerate_or_edit(chat, wait_until) -> None:
    await ready(chat, wait_until)
    chat.notice("a notice")
    assert not chat.regenerate()
    assert chat.edit() is None


async def test_the_title_is_the_first_question_that_is_shown(chat, engine, store, wait_until) -> None:
    def titles() -> tuple[str, str]:
        return chat.status.title, store.get(chat.conversation_id).title

    await ready(chat, wait_until)
    await ask(chat, wait_until, "My secret")
    assert titles() == ("My secret", "My secret")
    chat.edit()
    await ask(chat, wait_until, "My question")
    assert titles() == ("My question", "My question")
    await ask(chat, wait_until, "And then?")
    chat.edit()
    await ask(chat, wait_until, "And now?")
    assert titles() == ("My question", "My question")
    engine.script = [[Refused(1, 2, "no.")]]
    await ask(chat, wait_until, "And much later?")
    assert titles() == ("My question", "My question")
    await chat.new()
    await ask(chat, wait_until, "Another")
    assert chat.status.title == ""
    assert [found.conversation.title for found in store.search("")] == ["My question"]


async def test_an_empty_system_prompt_is_a_message_too_until_another_is_chosen(
    engine, store, listener, wait_until
) -> None:
    """Templates write one of their own where there is none."""
    chat = ChatController(engine, store, ChatOptions("Scripted-1B", system_prompt=""), listener)
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    assert [(m.role, m.content) for m in engine.requests[-1].messages] == [("system", ""), ("user", "One")]
    number = chat.conversation_id
    chat.set_system_prompt(" ")  # the dialog, left as it was
    assert (chat.system_prompt, store.get(number).system_prompt) == ("", "")
    await chat.new()
    await chat.resume(number)
    assert chat.system_prompt == ""
    chat.set_system_prompt("Be brief.")
    chat.set_system_prompt("")
    assert (chat.system_prompt, store.get(number).system_prompt) == (None, None)
    await ask(chat, wait_until, "Two")
    assert [m.content for m in engine.requests[-1].messages] == ["One", "Hello there.", "Two"]
    await chat.close()


async def test_system_prompt_changes_are_saved(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    chat.set_system_prompt("  Be brief.  ")
    chat.set_system_prompt("Be brief.")
    assert texts(chat, Kind.NOTICE) == ["System prompt changed."]
    assert store.get(chat.conversation_id).system_prompt == "Be brief."
    await ask(chat, wait_until, "Two")
    assert engine.requests[-1].messages[0].content == "Be brief."
