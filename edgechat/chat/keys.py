"""Keys that Textual takes for others."""

from enum import StrEnum
from typing import Any, cast


class _Keys(StrEnum):
    ALT_ENTER = "alt+enter"


def tell_alt_enter_from_enter() -> None:
    """Know Alt+Enter as most terminals send it, Escape and Return, which Textual reads as Enter alone.

    The table is Textual's own affair: where a later version has it elsewhere, Ctrl+J still begins a line.
    """
    try:
        from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
    except ImportError:
        return
    sequences = cast(dict[str, tuple[Any, ...]], ANSI_SEQUENCES_KEYS)
    sequences.setdefault("\x1b\r", (_Keys.ALT_ENTER,))
