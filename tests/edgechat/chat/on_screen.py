"""What the tests of the app type and see."""

from typing import Any

from edgechat.chat.entries import Kind
from edgechat.chat.events import State


def screen_text(app: Any) -> str:
    """What is on the screen, line by line."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def said(app: Any, *kinds: Kind) -> list[str]:
    """The texts of the conversation, of these kinds or of all."""
    return [e.text for e in app.controller.entries if not kinds or e.kind in kinds]


async def typed(pilot: Any, text: str) -> None:
    """Type a text, its line breaks as Ctrl+J."""
    await pilot.press(*({" ": "space", "\n": "ctrl+j"}.get(c, c) for c in text))


async def ready(app: Any, wait_until: Any) -> None:
    """Wait until a question would be answered at once."""
    await wait_until(lambda: app.controller.status.state is State.IDLE)


async def ask(app: Any, pilot: Any, wait_until: Any, text: str) -> None:
    """Type a question, send it and wait for the whole answer."""
    answers = len(said(app, Kind.ASSISTANT))
    await typed(pilot, text)
    await pilot.press("enter")
    await wait_until(lambda: len(said(app, Kind.ASSISTANT)) > answers and not app.controller.status.busy)
    await pilot.pause()
