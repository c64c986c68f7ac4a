"""Terminals that can't show the chat."""

from collections.abc import Mapping

DUMB = frozenset(("dumb", "unknown"))
"""Values of TERM. Rich takes such a terminal for 80x25 whatever it is, so that an app would measure and draw
itself for ever."""


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Whether these variables say that the terminal can't move its cursor."""
    return environ.get("TERM", "").lower() in DUMB
