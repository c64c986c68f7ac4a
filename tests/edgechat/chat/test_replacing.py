"""What takes the place of a question or an answer: where it comes to nothing, the old one is there again, and
whenever the app dies, one of them is whole in the store."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgechat.chat.entries import Kind
from edgechat.chat.events import GivenBack, State
from edgechat.engine.process.messages import Evicted, Refused
from edgechat.errors import EngineCrashedError
from edgechat.history import HistoryStore
from tests.edgechat.chat import on_screen
from tests.edgechat.chat.on_screen import said, screen_text, typed
from tests.edgechat.chat.turns import agrees, ask, ready, saved, texts

REFUSED = Refused(1, 2, "too long: shorten it.")
NOTICE = "too long: shorten it. The question was not sent: it is in the prompt again."


def talk(chat: Any) -> list[str]:
    """The conversation without what the app says."""
    return texts(chat, Kind.USER, Kind.ASSISTANT)


def kept(chat: Any) -> list[str]:
    """The conversation as it is saved."""
    return [row[1] for row in saved(chat.store, chat.conversation_id)]


# --- refused


@pytest.mark.parametrize("n_before", [0, 1])
async def test_an_edited_question_that_is_refused(chat, engine, listener, wait_until, n_before: int) -> None:
    await ready(chat, wait_until)
    engine.script = [[str(number)] for number in range(n_before + 1)] + [[REFUSED], ["fine"]]
    questions = [f"Question {number}" for number in range(n_before + 1)]
    for question in questions:
        await ask(chat, wait_until, question)
    before, title = talk(chat), chat.status.title
    in_use = chat.status.n_context
    chat.edit()
    await ask(chat, wait_until, "x" * 54_000)
    assert talk(chat) == kept(chat) == before
    assert chat.entries[-1].text == NOTICE
    assert chat.status.title == chat.store.get(chat.conversation_id).title == title
    assert chat.status.n_context == in_use
    assert [e for e in listener.events if isinstance(e, GivenBack)] == [GivenBack("x" * 54_000, edited=True)]
    assert agrees(chat, listener)
    await ask(chat, wait_until, "And then?")
    assert talk(chat) == kept(chat) == [*before, "And then?", "fine"]
    assert [m.content for m in engine.requests[-1].messages] == [*before, "And then?"]


async def test_an_answer_is_saved_with_its_first_words(
    chat, engine, listener, wait_until, monkeypatch
) -> None:
    """What it takes the place of is hidden with them, so that whenever the app dies there is a text."""
    monkeypatch.setattr("edgechat.chat.saving.INTERVAL_S", 3600.0)
    await ready(chat, wait_until)
    more = asyncio.Event()
    engine.script = [["old"], ["New ", more, "answer"]]
    await ask(chat, wait_until, "Question")
    assert chat.regenerate()
    await wait_until(lambda: chat.status.state is State.STREAMING)
    assert saved(chat.store, chat.conversation_id)[-1] == ("assistant", "New ", "partial")
    assert kept(chat) == [*talk(chat)[:1], "New "]
    more.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert saved(chat.store, chat.conversation_id)[-1] == ("assistant", "New answer", "complete")
    assert talk(chat) == kept(chat) == ["Question", "New answer"]
    assert agrees(chat, listener)


async def test_it_comes_back_with_how_its_answer_came_about(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], [REFUSED]]
    await ask(chat, wait_until, "One")
    before = chat.store.messages(chat.conversation_id)
    answer = chat.last_answer_entry
    chat.edit()
    await ask(chat, wait_until, "Uno")
    assert chat.store.messages(chat.conversation_id) == before
    assert chat.last_answer_entry == answer


async def test_it_may_be_edited_again(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], [REFUSED], [REFUSED], ["2"]]
    await ask(chat, wait_until, "One")
    for text in ("Uno", "Due"):
        chat.edit()
        await ask(chat, wait_until, text)
        assert talk(chat) == kept(chat) == ["One", "1"]
    chat.edit()
    await ask(chat, wait_until, "Tre")
    assert talk(chat) == kept(chat) == ["Tre", "2"]


async def test_an_edited_question_that_is_refused_when_it_is_asked_again(
    chat, engine, listener, wait_until
) -> None:
    """It had no word of an answer, so nothing took the old exchange's place yet."""
    await ready(chat, wait_until)
    crash = EngineCrashedError("the engine was killed")
    engine.script = [["1"], [crash], [crash], [REFUSED], [REFUSED], ["2"]]
    await ask(chat, wait_until, "One")
    chat.edit()
    await ask(chat, wait_until, "Uno")
    chat.edit()
    await ask(chat, wait_until, "Due")
    assert talk(chat) == kept(chat) == ["Due"]
    for left in (["Uno"], ["One", "1"]):
        chat.regenerate()
        await wait_until(lambda: chat.status.state is State.IDLE)
        assert talk(chat) == kept(chat) == left
    assert agrees(chat, listener)
    chat.edit()
    await ask(chat, wait_until, "Tre")
    assert talk(chat) == kept(chat) == ["Tre", "2"]


async def test_another_question_after_it_brings_nothing_back(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], [EngineCrashedError("the engine was killed")], [REFUSED]]
    await ask(chat, wait_until, "One")
    chat.edit()
    await ask(chat, wait_until, "Uno")
    await ask(chat, wait_until, "Two")
    assert talk(chat) == kept(chat) == ["Uno"]


async def test_an_answer_that_is_refused_when_it_is_asked_for_again(
    chat, engine, listener, wait_until
) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], ["2"], [REFUSED]]
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Two")
    chat.regenerate()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert talk(chat) == kept(chat) == ["One", "1", "Two", "2"]
    assert chat.entries[-1].text == "too long: shorten it."
    assert agrees(chat, listener)


async def test_what_the_model_did_not_see_comes_back_too(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    gone = Evicted(1, (0, 1, 2), (), n_tokens=40, n_lost=40, n_pinned=5, n_kept=60, summary="They counted.")
    engine.script = [["1"], [gone, "2"], [REFUSED]]
    await ask(chat, wait_until, "One")
    await ask(chat, wait_until, "Two")
    unseen = chat._dialogue.unseen
    assert (unseen.key, unseen.summary) == (chat.entries[2].key, "They counted.")
    chat.edit()
    await ask(chat, wait_until, "Due")
    assert chat._dialogue.unseen == unseen
    conversation = chat.store.get(chat.conversation_id)
    assert (conversation.unseen_until, conversation.summary) == (chat.entries[2].saved_id, "They counted.")


async def test_a_conversation_whose_only_question_is_refused_never_was(chat, engine, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [[REFUSED], ["fine"]]
    await ask(chat, wait_until, "x" * 54_000)
    assert chat.store.search("") == []
    assert chat.store.latest() is None
    await ask(chat, wait_until, "Hi")
    assert kept(chat) == ["Hi", "fine"]
    assert [found.conversation.title for found in chat.store.search("")] == ["Hi"]


async def test_a_refused_question_on_the_screen(make_app, engine, wait_until) -> None:
    """It is being edited still: the next Enter replaces the old exchange, and Esc keeps it."""
    engine.script = [["alpha"], [REFUSED], [REFUSED], ["bravo"]]
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await on_screen.ready(app, wait_until)
        await on_screen.ask(app, pilot, wait_until, "Tell me")
        await pilot.press("f4")
        await typed(pilot, " more")
        await pilot.press("enter")
        await wait_until(lambda: "Enter replace the question  Esc keep it" in screen_text(app))
        await wait_until(lambda: "was not sent" in screen_text(app) and "alpha" in screen_text(app))
        assert app.chat.prompt.area.text == "Tell me more"
        assert said(app, Kind.USER, Kind.ASSISTANT) == ["Tell me", "alpha"]
        await pilot.press("escape")
        await wait_until(lambda: "Enter send" in screen_text(app))
        assert app.chat.prompt.area.text == ""
        await pilot.press("f4", "enter")
        await wait_until(lambda: app.controller.status.editing and app.chat.prompt.area.text == "Tell me")
        await typed(pilot, " all")
        await pilot.press("enter")
        await wait_until(lambda: said(app, Kind.USER, Kind.ASSISTANT) == ["Tell me all", "bravo"])
        await wait_until(lambda: not app.controller.status.busy)


# --- saved whole or not at all


def refuse_to_save(store: HistoryStore, text: str) -> None:
    """As where the disk is full when a message comes that begins so."""
    store._database.connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON messages WHEN new.content LIKE '" + text + "%' "
        "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    )


async def test_what_cannot_be_saved_takes_no_place(chat, engine, store, wait_until) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], [gate := asyncio.Event(), "2"], ["3"]]
    await ask(chat, wait_until, "One")
    refuse_to_save(store, "Uno")
    chat.edit()
    chat.send("Uno")
    assert kept(chat) == ["One", "1"]
    store._database.connection.execute("DROP TRIGGER full")
    gate.set()
    await wait_until(lambda: chat.status.state is State.IDLE)
    assert kept(chat) == ["Uno", "2"], "made up for with the next message"
    await ask(chat, wait_until, "Two")
    assert talk(chat) == kept(chat) == ["Uno", "2", "Two", "3"]


async def test_what_was_not_replaced_stays_when_another_conversation_is_shown(
    chat, engine, store, wait_until
) -> None:
    await ready(chat, wait_until)
    engine.script = [["1"], ["2"], ["3"], ["4"]]
    await ask(chat, wait_until, "One")
    first = chat.conversation_id
    await chat.new()
    await ask(chat, wait_until, "Two")
    second = chat.conversation_id
    refuse_to_save(store, "%")
    chat.edit()
    await ask(chat, wait_until, "Due")
    store._database.connection.execute("DROP TRIGGER full")
    await chat.resume(first)
    await ask(chat, wait_until, "And then?")
    assert kept(chat) == ["One", "1", "And then?", "4"]
    assert [row[1] for row in saved(store, second)] == ["Two", "2"]


async def test_a_conversation_is_saved_anew_whole_or_not_at_all(chat, store, wait_until) -> None:
    await ready(chat, wait_until)
    await ask(chat, wait_until, "One")
    store.delete(chat.conversation_id)
    refuse_to_save(store, "Two")
    await ask(chat, wait_until, "Two")
    assert store.search("") == []
    store._database.connection.execute("DROP TRIGGER full")
    await ask(chat, wait_until, "Three")
    assert talk(chat) == kept(chat)
    assert len(kept(chat)) == 6


REPLACER = """
import asyncio, os, signal, sys
from pathlib import Path
from edgechat.chat.controller import ChatController
from edgechat.chat.events import State
from edgechat.chat.options import ChatOptions
from edgechat.history import HistoryStore
from tests.edgechat.chat.conftest import ScriptedEngine

async def main(path, way, deadly):
    engine, store = ScriptedEngine(), HistoryStore(Path(path))
    chat = ChatController(engine, store, ChatOptions(model="Scripted-1B"), lambda event: None)
    async def rest():
        while chat.status.state is not State.IDLE:
            await asyncio.sleep(0)
    chat.start()
    await rest()
    engine.script = [["1"], ["2"], ["3"]]
    for question in ("One", "Two"):
        chat.send(question)
        await rest()
    n = 0
    def count(statement):
        nonlocal n
        n += 1
        if n == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
    store._database.connection.set_trace_callback(count)
    if way == "edit":
        chat.edit()
        chat.send("Due")
    else:
        chat.regenerate()
    await rest()

folder, way = sys.argv[1:]
for deadly in range(1, 100):
    child = os.fork()
    if not child:
        asyncio.run(main(f"{folder}/{deadly}.db", way, deadly))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(deadly)
        break
"""


@pytest.mark.parametrize("way", ["edit", "regenerate"])
def test_killed_at_any_statement_one_of_both_is_there(tmp_path: Path, way: str) -> None:
    """kill -9 before each statement that the store executes, from the first to the last."""
    process = subprocess.run(
        [sys.executable, "-c", REPLACER, str(tmp_path), way], capture_output=True, text=True, check=True
    )
    n_statements = int(process.stdout)
    question = "Due" if way == "edit" else "Two"
    steps = [["Two", "2"], [question], [question, "3"]]
    if way == "regenerate":
        del steps[1]
    found = []
    for deadly in range(1, n_statements + 1):
        store = HistoryStore(tmp_path / f"{deadly}.db")
        one, answer, *rest = [m.content for m in store.messages(1)]
        store.close()
        assert (one, answer) == ("One", "1")
        found.append(steps.index(rest))
    assert found == sorted(found)
    assert set(found) == set(range(len(steps)))
