"""How an answer came about, as rows and on the screen."""

from edgechat.chat.entries import Entry, Kind
from edgechat.chat.screens.details import DetailsScreen, details
from edgechat.engine.process.messages import Finished
from edgechat.history import Receipt
from edgechat.records import FinishReason, Speculation, Timings
from tests.edgechat.chat.on_screen import ask, ready, screen_text

TIMINGS = Timings(0.0, 0.312, 20, 0.3, 30, 0.75, 40.0, 1500)
DRAFTS = Speculation(12, 44, 34, 32, 3.67, 1.84, 1.8)


def test_rows() -> None:
    receipt = Receipt(seed=7, n_pinned=12, n_lost=1, speculation=DRAFTS)
    answer = Entry(
        1, Kind.ASSISTANT, "x", model="m", n_tokens=31, n_context=700, timings=TIMINGS, receipt=receipt
    )
    assert details(answer, 1024) == [
        ("Model", "m"),
        ("Length", "31 tokens"),
        ("First token", "after 0.31 s"),
        ("Reading", "20 tokens in 0.30 s; 1,500 more were still known"),
        ("Writing", "0.75 s"),
        ("Speed", "40.0 tokens/s"),
        ("Context", "700 of 1,024 tokens in use"),
        ("Pinned", "12 tokens at the start, which always stay"),
        ("Not seen", "1 token, for which there was no room"),
        ("Drafts", "32 of 34 tokens were right"),
        ("Steps", "3.67 tokens each"),
        ("Gain", "×1.84 against plain decoding (expected ×1.80)"),
        ("Seed", "7"),
    ]


def test_an_estimate_is_said_to_be_one() -> None:
    answer = Entry(1, Kind.ASSISTANT, "x", receipt=Receipt(n_lost=12_300, about=True))
    assert dict(details(answer, 0))["Not seen"] == "about 12,300 tokens, for which there was no room"


def test_drafts_that_stopped_tell_of_the_answer_and_of_late() -> None:
    drafts = Speculation(20, 44, 34, 32, 2.2, 1.1, 1.2, "drafting 2 tokens would need 80% accepted, 41% were")
    rows = details(Entry(1, Kind.ASSISTANT, "x", receipt=Receipt(speculation=drafts)), 0)
    assert rows[-4:] == [
        ("Drafts", "32 of 34 tokens were right"),
        ("Steps", "2.20 tokens each"),
        ("Gain", "×1.10 against plain decoding (expected ×1.20)"),
        ("Off at the end", "drafting 2 tokens would need 80% accepted, 41% were"),
    ]


def test_an_old_answer_of_which_little_is_known() -> None:
    assert details(Entry(1, Kind.ASSISTANT, "x"), 0) == [
        ("Model", "unknown"),
        ("Length", "0 tokens"),
        ("Context", "0 tokens in use"),
        ("Drafts", "none"),
    ]


def test_why_nothing_is_drafted() -> None:
    off = Speculation(9, 9, 0, 0, 1.0, 1.0, 1.0, "a step of the draft costs more than it brings")
    rows = details(Entry(1, Kind.ASSISTANT, "x", receipt=Receipt(speculation=off)), 0)
    assert rows[-1] == ("Drafts", "off: a step of the draft costs more than it brings")
    assert "Gain" not in dict(rows)


async def test_the_screen(make_app, engine, wait_until) -> None:
    engine.script = [["Hi.", Finished(1, FinishReason.STOP, (1,), TIMINGS, 9, DRAFTS)]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await pilot.press("f6")
        await wait_until(lambda: [n.message for n in app._notifications] == ["There is no answer yet."])
        assert not isinstance(app.screen, DetailsScreen)
        await ask(app, pilot, wait_until, "Hello")
        await pilot.press(*"/details", "enter")
        await wait_until(lambda: isinstance(app.screen, DetailsScreen))
        await wait_until(lambda: "32 of 34 tokens were right" in screen_text(app))
        await wait_until(lambda: str(engine.requests[0].sampling.seed) in screen_text(app))
        await pilot.press("escape")
        assert app.screen is app.chat


async def test_the_receipt_is_saved(make_app, engine, store, wait_until) -> None:
    engine.script = [["Hi.", Finished(1, FinishReason.STOP, (1,), TIMINGS, 9, DRAFTS)]]
    app = make_app()
    async with app.run_test() as pilot:
        await ready(app, wait_until)
        await ask(app, pilot, wait_until, "Hello")
        answer = store.messages(app.controller.conversation_id)[1]
        assert answer.receipt == Receipt(engine.requests[0].sampling.seed, 0, 0, DRAFTS)
