"""The status line at every width."""

import pytest

from edgechat.chat.events import ChatStatus, State
from edgechat.chat.widgets.status import status_line

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
    assert "32/34 drafts, ×1.8" in status_line(status, 100).plain
    assert "drafts" not in status_line(status, 40).plain
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
    assert "drafts" not in status_line(status, 100).plain
