"""What the tests of the turn's state machine do and see."""

from typing import Any

from edgechat.chat.controller import ChatController
from edgechat.chat.entries import Kind
from edgechat.chat.events import Added, Changed, Grew, Removed, Reset, State
from edgechat.history import HistoryStore


def texts(chat: ChatController, *kinds: Kind) -> list[str]:
    """The texts of the conversation, of these kinds or of all."""
    return [e.text for e in chat.entries if not kinds or e.kind in kinds]


def saved(store: HistoryStore, conversation: int | None) -> list[tuple[str, str, str]]:
    """Role, text and status of each message that was saved."""
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
    """Whether the events told all of the transcript."""
    return mirrored(listener) == [(e.key, e.text) for e in chat.entries]


async def ready(chat: ChatController, wait_until: Any) -> None:
    """Load the model."""
    chat.start()
    await wait_until(lambda: chat.status.state is State.IDLE)


async def ask(chat: ChatController, wait_until: Any, text: str) -> None:
    """Ask a question and wait for the whole answer."""
    assert chat.send(text)
    await wait_until(lambda: chat.status.state is State.IDLE)


async def three_turns(chat: ChatController, engine: Any, wait_until: Any, third: list[Any]) -> None:
    """Three questions, the last of which is answered as `third` says."""
    await ready(chat, wait_until)
    engine.script = [["1"], ["2"], third, ["4"]]
    for question in ("One", "Two", "Three"):
        await ask(chat, wait_until, question)
