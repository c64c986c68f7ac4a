"""Keys that Textual takes for others."""

from enum import StrEnum
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


class _Keys(StrEnum):
    ALT_ENTER = "alt+enter"


def tell_alt_enter_from_enter() -> None:
    """Know Alt+Enter as most terminals send it, Escape and Return, which Textual reads as Enter alone."""
    sequences = cast(dict[str, tuple[Any, ...]], ANSI_SEQUENCES_KEYS)
    sequences.setdefault("\x1b\r", (_Keys.ALT_ENTER,))
