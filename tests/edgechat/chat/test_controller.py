"""The turn's state machine, without a terminal, on a scripted engine."""

import asyncio
from typing import Any

import pytest

from edgechat.chat.controller import ChatController
from edgechat.chat.entries import Kind, Severity
from edgechat.chat.events import Added, Changed, Grew, Removed, Reset, State, StatusChanged
from edgechat.engine.process.messages import Finished, Note, Prefilled, Refused
from edgechat.errors import EngineCrashedError, NotFoundError
from edgechat.history import ConversationGone, HistoryStore, Status
from edgechat.records import FinishReason, Speculation

CRASH = EngineCrashedError("the engine was killed (signal 9): ask again, it starts anew")


def texts(chat: ChatController, *kinds: Kind) -> list[str]:
    return [e.text for e in chat.entries if not kinds or e.kind in kinds]


def saved(store: HistoryStore, conversation: int | None) -> list[tuple[str, str, str]]:
    assert conversation is not None
    return [(m.role, m.content, m.status.value) for m in store.messages(conversation)]


def mirrored(listener: Any) -> list[tuple[int, str]]:
    """The transcript as someone has it who knows nothing but the events."""
    shown: dict[int, str] = {}
    for event in listener.events:
        match event:
            case Reset(entries=entries):
                shown = {e.key: e.text for e in entries}
            case Added(entry=entry) | Changed(entry=entry):
                shown[entry.key] = entry.text
            case Grew(key=key, text=text):
                shown[key] += text
            case Removed(key=key):
                del shown[key]
    return list(shown.items())


def agrees(chat: ChatController, listener: Any) -> bool:
    return mirrored(listener) == [(e.key, e.text) for e in chat.entries]


async def ready(chat: ChatController, wait_until: Any) -> None:
    chat.start()
    await wait_until(lambda: chat.status.state is State.IDLE)


async def ask(chat: ChatController, wait_until: Any, text: str) -> None:
    assert chat.send(text)
    await wait_until(lambda: chat.status.state is State.IDLE)


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


async def test_half_a_surrogate_pair_is_no_trouble(chat, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "half \ud83d")
    assert saved(store, chat.conversation_id)[0][1] == "half ?"


async def test_stop_keeps_what_there_is(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["One, ", "two", asyncio.Event(), ", three"]]
    chat.send("Count")
    await wait_until(lambda: chat.last_answer == "One, two")
    assert not chat.send("Not now")
    assert not chat.regenerate()
    assert chat.take_back() is None
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


async def test_a_refused_request_is_one_line(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[Refused(1, 5, "9,000 tokens do not fit 8,192")], ["fine"]]
    await ask(chat, wait_until, "Tell me")
    assert texts(chat) == [
        "9,000 tokens do not fit 8,192 (The question was not sent: it is in the prompt again.)"
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


async def test_an_answer_cut_at_the_limit_says_so(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["a", Finished(1, FinishReason.LENGTH, (1,), engine_timings(engine), 8192)]]
    await ask(chat, wait_until, "Tell me")
    assert chat.entries[-1].status is Status.LENGTH
    assert chat.status.n_context == 8192


async def test_the_status_has_what_drafting_did_for_the_last_answer(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    helped = Speculation(
        steps=2, tokens=4, drafted=3, accepted=2, tokens_per_step=2, speedup=1.5, predicted=1.4
    )
    engine.script = [["a", Finished(1, FinishReason.STOP, (1,), engine_timings(engine), 9, helped)], ["b"]]
    await ask(chat, wait_until, "Tell me")
    assert chat.status.speculation == helped
    await ask(chat, wait_until, "Again")
    assert chat.status.speculation is None


def engine_timings(engine: Any) -> Any:
    import msgspec

    from edgechat.records import Timings

    return msgspec.convert(
        {
            "load_s": 0,
            "ttft_s": 1,
            "prefill_tokens": 1,
            "prefill_s": 1,
            "decode_tokens": 1,
            "decode_s": 1,
            "tokens_per_s": 1,
        },
        Timings,
        strict=False,
    )


async def test_an_empty_answer_is_said(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[]]
    await ask(chat, wait_until, "Tell me")
    assert "nothing to say" in chat.entries[-1].text
    assert len(saved(store, chat.conversation_id)) == 1


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


async def test_nothing_to_regenerate_or_take_back(chat, wait_until) -> None:
    await ready(chat, wait_until)
    chat.notice("a notice")
    assert not chat.regenerate()
    assert chat.take_back() is None


async def test_take_back(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Tvo")
    assert chat.take_back() == "Tvo"
    assert texts(chat) == ["One", "Hello there."]
    assert [row[1] for row in saved(store, chat.conversation_id)] == ["One", "Hello there."]
    await ask(chat, wait_until, "Two")
    assert [m.content for m in engine.requests[-1].messages] == ["One", "Hello there.", "Two"]
    assert agrees(chat, listener)


async def test_the_title_is_the_first_question_that_is_shown(chat, store, wait_until) -> None:
    def titles() -> tuple[str, str]:
        return chat.status.title, store.get(chat.conversation_id).title

    await ready(chat, wait_until)
    await ask(chat, wait_until, "My secret")
    assert titles() == ("My secret", "My secret")
    chat.take_back()
    assert titles() == ("", "")
    await ask(chat, wait_until, "My question")
    assert titles() == ("My question", "My question")
    await ask(chat, wait_until, "And then?")
    chat.take_back()
    assert titles() == ("My question", "My question")
    number = chat.conversation_id
    chat.take_back()
    await chat.new()
    await chat.resume(number)
    assert chat.status.title == ""


async def test_new_and_resume(chat, engine, store, listener, wait_until) -> None:
    await ready(chat, wait_until)
    chat.set_system_prompt("Be brief.")
    await ask(chat, wait_until, "One")
    first, request = chat.conversation_id, engine.requests[-1]
    await chat.new()
    assert (chat.entries, chat.conversation_id, chat.system_prompt) == ([], None, "")
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
    conversation = store.create("Old", "starter", "")
    store.add(conversation.id, "user", "Tell me", status=Status.COMPLETE)
    store.add(conversation.id, "assistant", "The first wo", status=Status.PARTIAL)
    await ready(chat, wait_until)
    await chat.resume(conversation.id)
    assert chat.entries[1].status is Status.PARTIAL
    await ask(chat, wait_until, "Go on")
    assert [m.content for m in engine.requests[-1].messages] == ["Tell me", "The first wo", "Go on"]


async def test_resuming_a_deleted_conversation(chat, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    with pytest.raises(ConversationGone):
        await chat.resume(999)
    assert texts(chat) == ["One", "Hello there."]


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
    engine.script = [["One, ", "two, ", gate, "three"]]
    chat.send("Count")
    await wait_until(
        lambda: saved(store, chat.conversation_id)[1:] == [("assistant", "One, two, ", "partial")]
    )
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


async def test_system_prompt_changes_are_saved(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    chat.set_system_prompt("  Be brief.  ")
    chat.set_system_prompt("Be brief.")
    assert texts(chat, Kind.NOTICE) == ["System prompt changed."]
    assert store.get(chat.conversation_id).system_prompt == "Be brief."
    await ask(chat, wait_until, "Two")
    assert engine.requests[-1].messages[0].content == "Be brief."


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
async def test_nothing_is_no_question(chat, wait_until, text: str) -> None:
    await ready(chat, wait_until)
    assert not chat.send(text)
    assert chat.entries == []


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
