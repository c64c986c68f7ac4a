"""How an answer came about."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from edgechat.chat.entries import Entry
from edgechat.chat.plain import one_line
from edgechat.chat.screens.dialog import CLOSE, Dialog
from edgechat.history import Receipt
from edgechat.records import Speculation, Timings

Row = tuple[str, str]
"""What it is, and its value."""


def details(answer: Entry, context_size: int) -> list[Row]:
    """All that is known of an answer; what isn't known is left out.

    Args:
        answer: the answer.
        context_size: tokens of context that there are; 0: unknown.
    """
    receipt = answer.receipt or Receipt()
    rows = [("Model", one_line(answer.model) or "unknown"), ("Length", _count(answer.n_tokens, "token"))]
    if answer.timings is not None:
        rows += _timings(answer.timings)
    rows += _context(answer.n_context, context_size, receipt)
    rows += _drafting(receipt.speculation)
    if receipt.seed is not None:
        rows.append(("Seed", str(receipt.seed)))
    return rows


def _timings(timings: Timings) -> list[Row]:
    read = f"{_count(timings.prefill_tokens, 'token')} in {timings.prefill_s:.2f} s"
    if timings.cached_tokens:
        read += f"; {timings.cached_tokens:,} more were still known"
    rows = [
        ("First token", f"after {timings.ttft_s:.2f} s"),
        ("Reading", read),
        ("Writing", f"{timings.decode_s:.2f} s"),
    ]
    if timings.tokens_per_s:
        rows.append(("Speed", f"{timings.tokens_per_s:.1f} tokens/s"))
    return rows


def _context(n_context: int, size: int, receipt: Receipt) -> list[Row]:
    of = f" of {size:,}" if size else ""
    rows = [("Context", f"{n_context:,}{of} tokens in use")]
    if receipt.n_pinned:
        rows.append(("Pinned", f"{_count(receipt.n_pinned, 'token')} at the start, which always stay"))
    if receipt.n_lost:
        about = "about " if receipt.about else ""
        rows.append(("Not seen", f"{about}{_count(receipt.n_lost, 'token')}, for which there was no room"))
    return rows


def _drafting(speculation: Speculation | None) -> list[Row]:
    """Of the whole answer; why there are no drafts is so at its end."""
    if speculation is None:
        return [("Drafts", "none")]
    rows = []
    if speculation.drafted:
        rows.append(("Drafts", f"{speculation.accepted:,} of {speculation.drafted:,} tokens were right"))
        rows.append(("Steps", f"{speculation.tokens_per_step:.2f} tokens each"))
        gain = f"×{speculation.speedup:.2f} against plain decoding"
        rows.append(("Gain", f"{gain} (expected ×{speculation.predicted:.2f})"))
    if speculation.reason:
        reason = one_line(speculation.reason)
        rows.append(("Off at the end", reason) if rows else ("Drafts", f"off: {reason}"))
    return rows or [("Drafts", "none")]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


class DetailsScreen(Dialog[None]):
    """Names and values."""

    CSS_PATH = "details.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f6,q", "cancel", "Close", show=False, priority=True),
        Binding("up", "scroll(-1)", "Up", show=False),
        Binding("down", "scroll(1)", "Down", show=False),
    ]

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        """One row below the other."""
        with Vertical(classes="dialog", id="details"):
            yield Static(Content("The last answer"), classes="dialog--title")
            with VerticalScroll(id="details-rows", can_focus=False):
                for name, value in self._rows:
                    with Horizontal(classes="details--row"):
                        yield Static(Content(name), classes="details--name")
                        yield Static(Content(value), classes="details--value")
            yield Static(CLOSE, classes="dialog--hint")

    def on_mount(self) -> None:
        """Say how to scroll, where there is more than is in sight."""
        self.tell_of_scrolling(self.query_one("#details-rows"))

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one("#details-rows", VerticalScroll).scroll_relative(y=lines, animate=False)
