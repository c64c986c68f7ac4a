"""The status line: what the engine does, how fast, and how full its context is."""

from collections.abc import Iterable
from dataclasses import replace

from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from edgechat.chat.events import ChatStatus, State
from edgechat.chat.plain import one_line
from edgechat.chat.styles import LINE, MUTED

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NEARLY_FULL = 0.85
METER_WIDTHS = (0, 0, 0, 8, 12)
"""Of each form of the line, the shortest first."""
_WORDS = {
    State.LOADING: ("loading", "$warning"),
    State.IDLE: ("ready", "$success"),
    State.PREFILLING: ("reading", "$primary"),
    State.STREAMING: ("writing", "$primary"),
    State.STOPPING: ("stopping", "$warning"),
    State.RESTARTING: ("restarting", "$warning"),
    State.UNAVAILABLE: ("no model", "$error"),
}
Part = tuple[str, str]
"""A text and its style."""


def status_line(status: ChatStatus, width: int, frame: int | None = None) -> Content:
    """The line for a terminal of any width: the widest form that fits.

    Args:
        status: what to show.
        width: cells that there are.
        frame: number of the spinner's frame; None for a still dot.
    """
    for detail in (4, 3, 2, 1, 0):
        left, right = _left(status, detail, frame), _right(status, detail)
        gap = width - left.cell_length - right.cell_length
        if gap >= 2:
            break
    else:
        left = _left(replace(status, tokens_per_s=None), None, frame)
        left = left.truncate(max(width - right.cell_length - 2, 0), ellipsis=True)
        gap = max(width - left.cell_length - right.cell_length, 1)
    return Content.assemble(left, " " * gap, right)


def _left(status: ChatStatus, detail: int | None, frame: int | None) -> Content:
    """`detail`: which form it is; None for the one that is cut where it ends."""
    word, colour = ("summing up", "$primary") if status.summing_up else _WORDS[status.state]
    moving = frame is not None and status.state not in {State.IDLE, State.UNAVAILABLE}
    sign = SPINNER[(frame or 0) % len(SPINNER)] if moving else "●"
    if status.progress is not None:
        word = f"{word} {status.progress:.0%}"
    model = one_line(status.model)
    longest = None if detail is None else (12, 12, 28, 40, 40)[detail]
    detail = detail or 0
    if longest is not None and len(model) > longest:
        model = model[: longest - 1] + "…"
    parts: list[Part] = [(model, "$foreground")]
    if status.tokens_per_s is not None:
        parts.append((f"{status.tokens_per_s:.1f} tok/s", MUTED))
    drafting = status.speculation
    if drafting is not None and drafting.accepted and not drafting.reason and detail >= 2:
        gain = f"×{drafting.speedup:.1f}"
        if gain != "×1.0":
            parts.append((gain, MUTED))
    if status.ttft_s is not None and detail >= 1:
        words = " to first token" if detail >= 4 else ""
        parts.append((f"{status.ttft_s:.2f} s{words}", MUTED))
    gap = "   " if detail >= 2 else "  "
    return Content.assemble((sign, colour), " ", (word, colour), *_spread(parts, gap))


def _right(status: ChatStatus, detail: int) -> Content:
    if not status.context_size:
        return Content("")
    share = status.n_context / status.context_size
    colour = "$warning" if share >= NEARLY_FULL else MUTED
    used = f"{status.n_context:,}"
    if status.n_pinned:
        used = f"{status.n_pinned:,} + {max(status.n_context - status.n_pinned, 0):,}"
    text = f"{used} / {status.context_size:,}"
    if detail <= 1:
        text = text.replace(" ", "")
    width = METER_WIDTHS[detail]
    if not width:
        return Content.styled(text, colour)
    pinned, seen = meter(status, width)
    return Content.assemble(
        ("━" * pinned, "$secondary"),
        ("━" * seen, "$warning" if share >= NEARLY_FULL else "$primary"),
        ("─" * (width - pinned - seen), LINE),
        "  ",
        (text, colour),
    )


def meter(status: ChatStatus, width: int) -> tuple[int, int]:
    """Cells of a meter for what is pinned and for what else is seen; the rest is free.

    What there is has a cell, however little it is.
    """
    used = min(round(status.n_context / status.context_size * width), width)
    pinned = min(round(status.n_pinned / status.context_size * width), width)
    pinned = max(pinned, 1) if status.n_pinned else 0
    seen = max(used - pinned, 1) if status.n_context > status.n_pinned else 0
    return min(pinned, width - seen), seen


def _spread(parts: Iterable[Part], gap: str) -> list[str | Part]:
    spread: list[str | Part] = []
    for part in parts:
        spread += [gap, part]
    return spread


class StatusLine(Widget):
    """One line; its spinner turns while something is under way."""

    status: reactive[ChatStatus] = reactive(ChatStatus())

    def __init__(self) -> None:
        super().__init__(id="status")
        self._frame = 0
        self._spinning: Timer | None = None

    def on_mount(self) -> None:
        """Make the spinner, at rest."""
        self._spinning = self.set_interval(1 / 10, self._turn, pause=True)
        self.watch_status(self.status)

    def watch_status(self, status: ChatStatus) -> None:
        """Turn the spinner only while there is something to wait for."""
        if self._spinning is None:
            return
        if self._animated and (status.busy or status.state in {State.LOADING, State.RESTARTING}):
            self._spinning.resume()
        else:
            self._spinning.pause()

    @property
    def _animated(self) -> bool:
        return self.app.animation_level != "none"

    def _turn(self) -> None:
        self._frame += 1
        self.refresh()

    def render(self) -> Content:
        """The line."""
        return status_line(self.status, self.size.width, self._frame if self._animated else None)
