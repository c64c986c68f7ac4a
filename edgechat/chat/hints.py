"""Which keys matter now: the line below the prompt, in plain values."""

from edgechat.chat.events import ChatStatus, State

MANY_LINES = 8
"""More lines of a question than this are not in sight together."""
WIDE = 72
"""Columns of a terminal that has room for more than what is needed."""

Hint = tuple[str, str]
"""A key, or a number, and what it does or counts."""


def hints(status: ChatStatus, *, n_lines: int, follows_end: bool, width: int) -> tuple[Hint, ...]:
    """From left to right.

    Args:
        status: what the conversation waits for.
        n_lines: of the question in the prompt.
        follows_end: the newest message is in sight.
        width: of the terminal, in columns.
    """
    found: list[Hint] = []
    if n_lines > MANY_LINES:
        found.append((f"{n_lines:,}", "lines"))
    if status.busy:
        found.append(("Esc", "stop"))
    elif status.editing:
        found += [("Enter", "replace the question"), ("Esc", "keep it")]
    elif status.state in {State.LOADING, State.RESTARTING}:
        found.append(("Enter", "send when loaded"))
    elif status.state is State.UNAVAILABLE:
        found.append(("Enter", "load again"))
    else:
        found.append(("Enter", "send"))
    if not follows_end:
        found.append(("Ctrl+End", "newest"))
    elif not (status.busy or status.editing) and width >= WIDE:
        found.append(("Ctrl+J", "new line"))
    found.append(("F1", "help"))
    return tuple(found)
