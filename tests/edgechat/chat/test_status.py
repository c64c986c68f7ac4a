"""The status line at every width."""

from dataclasses import replace

import msgspec
import pytest

from edgechat.chat.events import ChatStatus, State
from edgechat.chat.widgets.status import meter, status_line

FULL = ChatStatus(State.IDLE, "SmolLM2-135M-Instruct", "", None, 42.13, 0.312, 1234, 8192)


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (98, "● ready   SmolLM2-135M-Instruct   42.1 tok/s   0.31 s to first token"),
        (78, "● ready   SmolLM2-135M-Instruct   42.1 tok/s   0.31 s"),
        (56, "● ready  SmolLM2-135…  42.1 tok/s  0.31 s"),
    ],
)
def test_widths(width: int, text: str) -> None:
    line = status_line(FULL, width)
    assert line.cell_length == width
    assert line.plain.startswith(text + "  ")
    assert line.plain.replace(" ", "").endswith("1,234/8,192")


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (44, "● ready  SmolLM2-135M-Instruct   1,234/8,192"),
        (38, "● ready  SmolLM2-135M-In…  1,234/8,192"),
        (30, "● ready  SmolLM2…  1,234/8,192"),
    ],
)
def test_a_name_is_cut_once(width: int, text: str) -> None:
    assert status_line(FULL, width).plain.split() == text.split()


@pytest.mark.parametrize("width", range(0, 130, 3))
@pytest.mark.parametrize("state", State)
def test_it_always_fits(width: int, state: State) -> None:
    status = ChatStatus(state, "m" * 200, "t", 0.5, 123456.7, 99.99, 9_999_999, 10_000_000)
    assert status_line(status, width, 3).cell_length <= max(width, 24)


@pytest.mark.parametrize(
    ("status", "beginning"),
    [
        (ChatStatus(State.LOADING, "m", progress=0.42), "⠋ loading 42%   m"),
        (ChatStatus(State.LOADING, "m"), "⠋ loading   m"),
        (ChatStatus(State.PREFILLING, "m", progress=0.5), "⠋ reading 50%   m"),
        (ChatStatus(State.STREAMING, "m", tokens_per_s=7), "⠋ writing   m   7.0 tok/s"),
        (ChatStatus(State.STOPPING, "m"), "⠋ stopping   m"),
        (ChatStatus(State.UNAVAILABLE, "m"), "● no model   m"),
        (ChatStatus(State.IDLE, "[red]m\x1b"), "● ready   [red]m␛"),
    ],
)
def test_states(status: ChatStatus, beginning: str) -> None:
    assert status_line(status, 100, 0).plain.startswith(beginning)


def test_a_context_that_is_nearly_full_is_coloured() -> None:
    styles = {str(span.style) for span in status_line(ChatStatus(n_context=90, context_size=100), 100).spans}
    assert "$warning" in styles
    full = status_line(ChatStatus(n_context=100, context_size=100), 100).plain
    assert "━" * 12 in full
    assert "─" not in full


def test_says_what_drafting_did() -> None:
    from edgechat.records import Speculation

    helped = Speculation(
        steps=12, tokens=44, drafted=34, accepted=32, tokens_per_step=3.7, speedup=1.84, predicted=1.8
    )
    status = ChatStatus(State.IDLE, model="m", tokens_per_s=20.0, speculation=helped)
    assert "20.0 tok/s   ×1.8 " in status_line(status, 100).plain
    assert "×" not in status_line(status, 10).plain
    status = replace(status, speculation=msgspec.structs.replace(helped, speedup=1.04))
    assert "20.0 tok/s  " in status_line(status, 100).plain
    assert "×" not in status_line(status, 100).plain
    plain = Speculation(
        steps=44,
        tokens=44,
        drafted=1,
        accepted=0,
        tokens_per_step=1,
        speedup=1,
        predicted=1,
        reason="no words",
    )
    status = ChatStatus(State.IDLE, model="m", tokens_per_s=20.0, speculation=plain)
    assert "×" not in status_line(status, 100).plain


@pytest.mark.parametrize(
    ("n_pinned", "n_context", "cells"),
    [
        (0, 0, (0, 0)),
        (0, 1, (0, 1)),
        (0, 500, (0, 6)),
        (250, 750, (3, 6)),
        (1, 2, (1, 1)),
        (250, 1000, (3, 9)),
        (1, 1000, (1, 11)),
        (1000, 1000, (12, 0)),
        (990, 1000, (11, 1)),
        (0, 2000, (0, 12)),
    ],
)
def test_meter(n_pinned: int, n_context: int, cells: tuple[int, int]) -> None:
    status = ChatStatus(n_context=n_context, n_pinned=n_pinned, context_size=1000)
    assert meter(status, 12) == cells
    line = status_line(status, 100)
    shades = [str(span.style) for span in line.spans if line.plain[span.start] in "━─"]
    assert shades[0] == ("$secondary" if n_pinned else shades[0])


@pytest.mark.parametrize(
    ("width", "end"),
    [
        (100, "━━━━━━━━━━━━  250 + 500 / 1,000"),
        (70, "  250 + 500 / 1,000"),
        (60, "250+500/1,000"),
    ],
)
def test_pinned_and_seen_are_told_apart(width: int, end: str) -> None:
    status = ChatStatus(State.IDLE, "SmolLM2-135M", "", None, 42.1, 0.31, 750, 1000, n_pinned=250)
    line = status_line(status, width).plain
    assert line.replace("─", "━").endswith(end)
    assert ("━" in line) == (width == 100)
