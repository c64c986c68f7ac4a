"""Questions that the engine refuses, and conversations that another app has open."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from textual.widget import MountError

from edgechat.chat.controller import ChatController
from edgechat.chat.entries import Kind
from edgechat.chat.events import GivenBack, State
from edgechat.chat.options import ChatOptions
from edgechat.chat.screens.confirm import ConfirmScreen
from edgechat.chat.screens.conversations import ConversationsScreen
from edgechat.engine.process.messages import Refused
from edgechat.errors import ResourceError
from edgechat.history import HistoryStore, OpenedHistory, Status
from edgechat.history.claims import Claims
from edgechat.history.errors import ConversationOpen
from tests.edgechat.chat.on_screen import screen_text

CLAIM = """
import sys
from pathlib import Path
from edgechat.history.claims import Claims
print(Claims(Path(sys.argv[1])).claim(int(sys.argv[2])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def claim_elsewhere(history_path: Path):
    """Another process claims a conversation, until it is killed."""
    processes = []

    def claim(number: int) -> tuple[subprocess.Popen, bool]:
        process = subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(history_path.with_name("open.lock")), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process, process.stdout.readline().strip() == "True"

    yield claim
    for process in processes:
        process.kill()
        process.communicate()


async def idle(chat, wait_until) -> None:
    await wait_until(lambda: chat.status.state is State.IDLE)


async def test_a_refused_question_is_not_in_the_next_prompt(
    chat, engine, store, listener, wait_until
) -> None:
    engine.script = [["fine"], [Refused(1, 2, "too long: shorten it.")], ["again"]]
    chat.start()
    await idle(chat, wait_until)
    for question in ("one", "x" * 54_000, "three"):
        assert chat.send(question)
        await idle(chat, wait_until)
    assert [m.content for m in engine.requests[-1].messages] == ["one", "fine", "three"]
    assert [m.content for m in store.messages(chat.conversation_id)] == ["one", "fine", "three", "again"]
    assert [e.text for e in listener.events if isinstance(e, GivenBack)] == ["x" * 54_000]
    (notice,) = [e.text for e in chat.entries if e.kind is Kind.NOTICE]
    assert notice == "too long: shorten it. The question was not sent: it is in the prompt again."
    assert {request.overflow for request in engine.requests} == {"window"}


async def test_a_refused_question_is_in_the_prompt_again(make_app, engine, wait_until) -> None:
    engine.script = [[Refused(1, 2, "no.")]]
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(app.controller, wait_until)
        await pilot.press(*"hi", "enter")
        await wait_until(lambda: "was not sent" in screen_text(app))
        await wait_until(lambda: app.chat.prompt.area.text == "hi")
        assert app.controller.entries[0].kind is Kind.NOTICE


def test_a_claim_keeps_other_processes_out_and_ends_with_its_own(claim_elsewhere, history_path) -> None:
    claims = Claims(history_path.with_name("open.lock"))
    process, granted = claim_elsewhere(3)
    assert granted
    assert not claims.claim(3)
    assert claims.claim(4)
    assert not claim_elsewhere(4)[1]
    process.kill()
    process.wait()
    assert claims.claim(3)
    assert claim_elsewhere(4)[1], "one at a time"
    claims.release()
    assert claim_elsewhere(3)[1]
    claims.close()
    assert Claims(None).claim(1)


async def test_a_conversation_that_is_open_elsewhere(chat, store, claim_elsewhere, wait_until) -> None:
    conversation = store.create("Ships", "Scripted-1B", "")
    store.add(conversation.id, "user", "hello", status=Status.COMPLETE)
    claim_elsewhere(conversation.id)
    with pytest.raises(ConversationOpen, match="“Ships” is open in another window"):
        await chat.resume(conversation.id)
    assert chat.conversation_id is None
    assert chat.entries == []


async def test_what_is_open_elsewhere_is_not_deleted(
    chat, engine, store, claim_elsewhere, wait_until
) -> None:
    conversation = store.create("Ships", "Scripted-1B", "")
    store.add(conversation.id, "user", "hello", status=Status.COMPLETE)
    process, _ = claim_elsewhere(conversation.id)
    with pytest.raises(ConversationOpen, match="“Ships” is open in another window: close it there"):
        await chat.delete(conversation.id)
    assert store.get(conversation.id).n_messages == 1
    assert engine.forgotten == []

    process.kill()
    process.wait()
    await chat.delete(conversation.id)
    assert store.search("") == []
    assert len(engine.forgotten) == 1
    assert claim_elsewhere(conversation.id)[1], "nothing stays claimed"


async def test_what_is_open_elsewhere_is_not_even_asked_about(
    make_app, store: HistoryStore, claim_elsewhere, wait_until
) -> None:
    conversation = store.create("Ships", "Scripted-1B", "")
    store.add(conversation.id, "user", "hello", status=Status.COMPLETE)
    process, _ = claim_elsewhere(conversation.id)
    app = make_app()
    async with app.run_test(size=(120, 24), notifications=True) as pilot:
        await idle(app.controller, wait_until)
        await pilot.press("ctrl+o")
        await wait_until(lambda: "Ships" in screen_text(app))
        await pilot.press("ctrl+d")
        await wait_until(lambda: "is open in another window" in screen_text(app))
        assert isinstance(app.screen, ConversationsScreen)
        process.kill()
        process.wait()
        await pilot.press("ctrl+d")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
    assert store.get(conversation.id).n_messages == 1


async def test_going_on_with_one_that_is_open_elsewhere_begins_anew(
    make_app, store: HistoryStore, claim_elsewhere, wait_until
) -> None:
    conversation = store.create("Ships", "Scripted-1B", "")
    store.add(conversation.id, "user", "hello", status=Status.COMPLETE)
    claim_elsewhere(conversation.id)
    app = make_app(resume=conversation.id)
    async with app.run_test(size=(120, 24)):
        await wait_until(lambda: "is open in another window" in screen_text(app))
        app.controller.send("another")
        await wait_until(lambda: app.controller.conversation_id == conversation.id + 1)
        await wait_until(lambda: "Hello there." in screen_text(app) and not app.controller.status.busy)


async def test_what_is_wrong_with_the_store_is_said_below_the_conversation(
    make_app, store: HistoryStore, wait_until
) -> None:
    conversation = store.create("Ships", "Scripted-1B", "")
    store.add(conversation.id, "user", "hello", status=Status.COMPLETE)
    app = make_app(resume=conversation.id, history=OpenedHistory(store, "Nothing will be saved: no disk."))
    async with app.run_test(size=(80, 24)):
        await wait_until(lambda: "Nothing will be saved: no disk." in screen_text(app))
        await wait_until(lambda: "hello" in screen_text(app))


async def test_another_model_is_said(chat, store, wait_until) -> None:
    conversation = store.create("Ships", "Gemma", "")
    store.add(conversation.id, "user", "hello", status=Status.COMPLETE)
    await chat.resume(conversation.id)
    assert chat.entries[-1].text == "This began with Gemma; from here on Scripted-1B answers."


async def test_leaving_without_a_model_answers_its_code(make_app, engine, wait_until) -> None:
    engine.loading = [ResourceError("not enough memory")]
    app = make_app()
    async with app.run_test(size=(80, 24)):
        await wait_until(lambda: "No model is loaded" in screen_text(app))
        await wait_until(lambda: "Enter load again" in screen_text(app))
        assert app.controller.failure.code == 5
        app.controller.send("go")
        await wait_until(lambda: app.controller.failure is None)
        await wait_until(lambda: "Hello there." in screen_text(app) and not app.controller.status.busy)
        await wait_until(lambda: "Ask anything" in screen_text(app))


async def test_enter_alone_loads_again(make_app, engine, wait_until) -> None:
    engine.loading = [ResourceError("not enough memory")]
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: "Enter load again" in screen_text(app))
        await pilot.press("enter")
        await idle(app.controller, wait_until)
        await pilot.press("enter")
        await pilot.pause()
        assert (engine.starts, engine.requests) == (2, [])


async def test_a_conversation_knows_the_file_of_its_model(engine, store, listener, wait_until) -> None:
    options = ChatOptions("Scripted-1B", model_path="/models/scripted.gguf")
    chat = ChatController(engine, store, options, listener)
    chat.send("hello")
    latest = store.latest()
    assert (latest.model, latest.model_path) == ("Scripted-1B", "/models/scripted.gguf")
    await chat.close()


async def test_leaving_while_an_answer_is_drawn_is_no_error(
    make_app, engine, wait_until, monkeypatch
) -> None:
    """Widgets may be gone before the work that mounts in them is."""
    app = make_app()

    async def mount_too_late(event: Any) -> None:
        await wait_until(lambda: not app.is_running)
        raise MountError("gone")

    async with app.run_test(size=(80, 24)) as pilot:
        await idle(app.controller, wait_until)
        await pilot.pause()
        monkeypatch.setattr(app.chat.transcript, "apply", mount_too_late)
        app.controller.notice("the last word")
        await pilot.pause()
