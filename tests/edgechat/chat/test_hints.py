"""Which keys the line below the prompt names."""

import pytest

from edgechat.chat.events import ChatStatus, State
from edgechat.chat.hints import hints


@pytest.mark.parametrize(
    ("state", "first"),
    [
        (State.LOADING, ("Enter", "send when loaded")),
        (State.RESTARTING, ("Enter", "send when loaded")),
        (State.IDLE, ("Enter", "send")),
        (State.PREFILLING, ("Esc", "stop")),
        (State.STREAMING, ("Esc", "stop")),
        (State.STOPPING, ("Esc", "stop")),
        (State.UNAVAILABLE, ("Enter", "load again")),
    ],
)
def test_the_first_key_is_what_the_state_waits_for(state: State, first: tuple[str, str]) -> None:
    shown = hints(ChatStatus(state), n_lines=1, follows_end=True, width=80)
    assert (shown[0], shown[-1]) == (first, ("F1", "help"))


@pytest.mark.parametrize(("width", "n_hints"), [(71, 2), (72, 3)])
def test_a_narrow_terminal_has_no_room_for_new_lines(width: int, n_hints: int) -> None:
    shown = hints(ChatStatus(State.IDLE), n_lines=1, follows_end=True, width=width)
    assert len(shown) == n_hints
    assert (("Ctrl+J", "new line") in shown) == (n_hints == 3)


@pytest.mark.parametrize("state", [State.IDLE, State.LOADING, State.UNAVAILABLE])
def test_who_edits_a_question_may_leave_it_as_it_is(state: State) -> None:
    shown = hints(ChatStatus(state, editing=True), n_lines=1, follows_end=True, width=80)
    assert shown == (("Enter", "replace the question"), ("Esc", "keep it"), ("F1", "help"))


def test_what_is_out_of_sight_is_said() -> None:
    status = ChatStatus(State.IDLE)
    assert hints(status, n_lines=8, follows_end=False, width=80) == (
        ("Enter", "send"), ("Ctrl+End", "newest"), ("F1", "help"),
    )  # fmt: skip
    assert hints(status, n_lines=1_200, follows_end=True, width=60)[0] == ("1,200", "lines")
