"""The chat in terminals that have hardly any room."""

import pytest
from textual.geometry import Region

from edgechat.chat.entries import Kind
from tests.edgechat.chat.on_screen import ready, said, screen_text, typed

SIZES = [(20, 5), (20, 6), (20, 8), (20, 9), (30, 6), (120, 5)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_question_can_be_asked_and_is_seen(make_app, wait_until, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await ready(app, wait_until)
        await typed(pilot, "hello")
        await wait_until(lambda: "› hello" in screen_text(app))
        await pilot.press(*["ctrl+j", "a"] * 5)
        await wait_until(lambda: app.chat.prompt.area.size.height >= min(2, size[1] - 3))
        screen = Region(0, 0, *size)
        await wait_until(lambda: screen.contains_region(app.chat.prompt.region))
        await wait_until(lambda: screen.contains_region(app.chat.status_line.region))
        assert app.chat.transcript.size.height >= 1
        assert app.screen.max_scroll_y == 0
        await pilot.press("enter")
        await wait_until(lambda: said(app, Kind.ASSISTANT) == ["Hello there."])
        await wait_until(lambda: "Hello" in screen_text(app))


@pytest.mark.parametrize("size", [(20, 5), (30, 8), (2, 1)])
async def test_every_dialog_opens_and_closes(make_app, wait_until, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size, notifications=True) as pilot:
        await ready(app, wait_until)
        await typed(pilot, "hello")
        await pilot.press("enter")
        await wait_until(lambda: said(app, Kind.ASSISTANT) == ["Hello there."])
        for key in ("f1", "f2", "f6", "ctrl+o"):
            await pilot.press(key)
            await wait_until(lambda: app.screen is not app.chat)
            await pilot.pause()
            await pilot.press("escape")
            await wait_until(lambda: app.screen is app.chat)
        await pilot.resize_terminal(100, 30)
        await wait_until(lambda: "Hello there." in screen_text(app))
        await pilot.resize_terminal(*size)
        await pilot.pause()
