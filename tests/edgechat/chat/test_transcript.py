"""The window of live widgets, and that nothing which is shown acts."""

import asyncio
import random
import unicodedata
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget

from edgechat.chat.events import State
from edgechat.chat.plain import one_line, printable
from edgechat.chat.widgets.markdown import StreamingMarkdown
from edgechat.chat.widgets.transcript import CHUNK, MAX_LIVE, TAIL
from edgechat.chat.widgets.views import EntryView, QuestionText
from edgechat.history import Status
from tests.edgechat.chat.on_screen import screen_text

HOSTILE = (
    "[red]red[/red] [@click=app.quit]press[/] \x1b[31mansi\x1b[0m \x1b]52;c;aGk=\x07 bell\x07 "
    "\x9b2Jc1 \x7f <b>html</b> <script>alert(1)</script> \u202eoverride $primary {{x}} 'quoted'"
)


def long_conversation(store: Any, n: int) -> int:
    conversation = store.create("Long", "Scripted-1B", "")
    for number in range(n):
        role = "assistant" if number % 2 else "user"
        text = f"message {number}" + "\n\nmore of it" * (number % 3)
        store.add(conversation.id, role, text, status=Status.COMPLETE)
    return int(conversation.id)


async def settled(app: Any, wait_until: Any) -> None:
    await wait_until(lambda: not app.chat.transcript._shifting)


def in_sight(app: Any) -> list[str]:
    return [line.strip(" ▌█│") for line in screen_text(app).split("\n") if "message" in line]


async def test_five_hundred_messages_have_forty_widgets(make_app, store, wait_until) -> None:
    app = make_app(resume=long_conversation(store, 500))
    async with app.run_test(size=(80, 40)) as pilot:
        transcript = app.chat.transcript
        views: list[int] = []

        def mounted(index: int) -> str:
            return transcript.live[index].entry.text.split("\n")[0]

        async def reach(index: int, number: int) -> None:
            await wait_until(lambda: mounted(index) == f"message {number}")
            await settled(app, wait_until)
            views.append(len(app.screen.query(EntryView)))

        await reach(-1, 499)
        await wait_until(lambda: "message 499" in screen_text(app))
        assert views[-1] <= TAIL + CHUNK
        for number in range(470, 420, -CHUNK):
            transcript.scroll_home(animate=False)
            await reach(0, number)
        await pilot.press("ctrl+home")
        await reach(0, 0)
        await wait_until(lambda: "message 0" in screen_text(app))
        for number in range(29, 80, CHUNK):
            transcript.scroll_end(animate=False)
            await reach(-1, number)
        await pilot.press("ctrl+end")
        await reach(-1, 499)
        await wait_until(lambda: "message 499" in screen_text(app))
        assert transcript.follows_end
        assert max(views) <= MAX_LIVE
        assert len(transcript._views) == views[-1]


async def test_every_message_is_passed_once_while_scrolling(make_app, store, wait_until) -> None:
    """What is in sight stays in its place when older messages come: none is skipped or seen twice."""
    app = make_app(resume=long_conversation(store, 60))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: "message 59" in screen_text(app))
        await settled(app, wait_until)
        seen: list[int] = []
        for _ in range(1000):
            numbers = [int(line.split()[1]) for line in in_sight(app)]
            assert numbers == sorted(numbers)
            if numbers:
                if seen:
                    assert numbers[0] in (seen[-1], seen[-1] - 1), "it jumped"
                if not seen or numbers[0] != seen[-1]:
                    seen.append(numbers[0])
                if numbers[0] == 0:
                    break
            app.chat.transcript.scroll_up(animate=False)
            await pilot.pause()
            await settled(app, wait_until)
        assert seen == list(range(seen[0], -1, -1))


async def test_an_answer_streams_on_while_its_widget_is_away(make_app, store, engine, wait_until) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    engine.script = [["alpha ", gates[0], "bravo ", gates[1], "charlie"]]
    app = make_app(resume=long_conversation(store, 300))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(
            lambda: "message 299" in screen_text(app) and app.controller.status.state is State.IDLE
        )
        app.controller.send("Tell me")
        await wait_until(lambda: "alpha" in screen_text(app))
        for _ in range(6):
            app.chat.transcript.scroll_home(animate=False)
            await pilot.pause()
            await settled(app, wait_until)
        texts = [view.entry.text for view in app.chat.transcript.live]
        assert "alpha " not in texts
        gates[0].set()
        await wait_until(lambda: app.controller.last_answer == "alpha bravo ")
        await pilot.press("ctrl+end")
        await wait_until(lambda: "alpha bravo" in screen_text(app))
        gates[1].set()
        await wait_until(lambda: "alpha bravo charlie" in screen_text(app))


async def test_scrolling_away_from_a_streaming_answer_stays_there(
    make_app, engine, wait_until, monkeypatch
) -> None:
    engine.script = [[*(f"line {n}\n\n" for n in range(40)), gate := asyncio.Event(), "the end"]]
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: app.controller.status.state is State.IDLE)
        app.controller.send("Tell me")
        await wait_until(lambda: "line 39" in screen_text(app))
        await pilot.press("pageup")
        await wait_until(lambda: "line 39" not in screen_text(app))
        app.chat.transcript.scroll_to(y=4, animate=False)
        await wait_until(lambda: "line 1 " in screen_text(app))
        await pilot.pause()
        await wait_until(lambda: "Ctrl+End newest" in screen_text(app))
        frames = []
        display = app._display

        def lines() -> list[str]:
            return [line[:70] for line in screen_text(app).split("\n")[1:15]]  # without the scrollbar

        def record(*args: Any) -> None:
            display(*args)
            frames.append(lines())

        monkeypatch.setattr(app, "_display", record)
        frames.append(lines())
        gate.set()
        view = app.chat.transcript.live[-1]
        await wait_until(lambda: "the end" in view._markdown.source)
        await wait_until(lambda: "ready" in screen_text(app))
        await pilot.pause()
        assert [frame for frame in frames if frame != frames[0]] == []
        await pilot.press("ctrl+end")
        await wait_until(lambda: "the end" in screen_text(app))


async def test_what_is_shown_never_acts(make_app, engine, store, wait_until) -> None:
    engine.script = [[HOSTILE, f"\n\n```[bold]\n{HOSTILE}\n```\n\n<div>\nblock html\n</div>\n"]]
    conversation = store.create(HOSTILE, HOSTILE, "")
    store.add(conversation.id, "user", HOSTILE, status=Status.COMPLETE)
    app = make_app()
    async with app.run_test(size=(200, 70)) as pilot:
        await wait_until(lambda: app.controller.status.state is State.IDLE)
        app.controller.notice(HOSTILE)
        app.controller.send(HOSTILE)
        await wait_until(
            lambda: app.controller.status.state is State.IDLE and len(app.controller.entries) == 3
        )
        await wait_until(lambda: "block html" in screen_text(app))
        app.chat.transcript.anchor(False)
        app.chat.transcript.scroll_home(animate=False)
        await wait_until(lambda: screen_text(app).count("[red]red[/red]") >= 4)
        shown = screen_text(app)
        for piece in (
            "[red]red[/red]",
            "[@click=app.quit]press[/]",
            "␛[31mansi",
            "<b>html</b>",
            "<script>alert(1)</script>",
            "$primary {{x}}",
        ):
            assert shown.count(piece) >= 3, piece
        assert "<div>" in shown
        await pilot.press("ctrl+o")
        await wait_until(lambda: "[red]red[/red]" in screen_text(app) and app.screen is not app.chat)
        await pilot.press("ctrl+d")
        await pilot.pause()
        for text in (shown, screen_text(app)):
            assert not {c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}


def test_printable() -> None:
    assert printable("a\tb\nc\r\nd\x1b[0m\x00\x9b\x7f\u2028\ud83d") == "a\tb\nc\nd␛[0m␀�␡\n�"
    assert one_line(" a\n b\tc\x07 ") == "a b c␇"
    text = HOSTILE * 3
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    assert "".join(map(printable, pieces)) == printable(text)


DOCUMENT = """# Title

A paragraph with **bold**, *emphasis*, `code`, a [link](https://example.org) and <b>no html</b>.

1. one
2. two
   - nested
   - nested again

```python
def f(x: int) -> int:
    # a comment
    return x + 1
```

> A quote
> of two lines

| a | b |
|---|---|
| 1 | 2 |
| 3 | 4 |

- last
- item

```
no language
```

---

The end.
"""


def tree(widget: Widget) -> list[Any]:
    """What a Markdown widget consists of."""
    content = getattr(widget, "_content", None)
    own = (type(widget).__name__, content.plain if content is not None else "", getattr(widget, "code", ""))
    return [own, *(tree(child) for child in widget.children)]


class Page(App[None]):
    CSS = ".code--head { height: 1; }"

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield StreamingMarkdown()


@pytest.mark.parametrize("seed", range(4))
async def test_a_document_in_pieces_becomes_the_same_as_the_whole(seed: int, wait_until) -> None:
    chance = random.Random(seed)
    app = Page()
    async with app.run_test(size=(80, 100)):
        page = app.query_one(StreamingMarkdown)
        await page.show(DOCUMENT)
        await wait_until(
            lambda: [line for line in screen_text(app).split("\n") if line][-1:] == ["  The end."]
        )
        whole, drawn = tree(page), screen_text(app)
        await page.show("")
        rest = DOCUMENT
        while rest:
            size = chance.randint(1, 30)
            await page.append_text(rest[:size])
            rest = rest[size:]
        assert page.source == DOCUMENT
        await wait_until(lambda: screen_text(app) == drawn)
        await page.show(DOCUMENT)
        await wait_until(lambda: screen_text(app) == drawn)
        assert tree(page) == whole


VERSES = """An old silent pond
A frog jumps *into the pond*
Splash! Silence again

- one
  two

> three
> four
"""
VERSES_DRAWN = [
    "An old silent pond",
    "A frog jumps into the pond",
    "Splash! Silence again",
    "one",
    "two",
    "three",
    "four",
]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_lines_end_where_they_were_ended(size: int, wait_until) -> None:
    app = Page()

    def lines() -> list[str]:
        drawn = [line.strip(" •▌█│▎") for line in screen_text(app).split("\n")]
        return [line for line in drawn if line]

    async with app.run_test(size=(80, 40)):
        page = app.query_one(StreamingMarkdown)
        for start in range(0, len(VERSES), size):
            await page.append_text(VERSES[start : start + size])
        for _ in range(2):  # as it streamed, then parsed as a whole
            await wait_until(lambda: lines() == VERSES_DRAWN)
            await page.show(VERSES)


async def test_of_a_very_long_question_the_beginning_is_shown(make_app, store, wait_until) -> None:
    conversation = store.create("Long", "Scripted-1B", "")
    text = "\n".join(f"line {number} [bold]of[/] it" for number in range(5_000))
    store.add(conversation.id, "user", text, status=Status.COMPLETE)
    app = make_app(resume=conversation.id)
    async with app.run_test(size=(80, 24)) as pilot:
        more = f"▸ {len(text) - 20_000:,} more characters: a click shows all"
        await wait_until(lambda: more in screen_text(app))
        assert text[:20_000].split("\n")[-2] in screen_text(app)
        transcript = app.chat.transcript
        height = transcript.virtual_size.height
        await pilot.click(QuestionText, offset=(5, transcript.live[0].size.height - 3))
        await wait_until(lambda: transcript.virtual_size.height > 5_000 > height)
        await wait_until(lambda: "line 4999 [bold]of[/] it" in screen_text(app))
        assert more not in screen_text(app)
