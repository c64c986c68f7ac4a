"""The app's two themes, and which one the person chose last."""

import contextlib
from pathlib import Path

from textual.theme import Theme

from edgechat import paths

DARK = Theme(
    name="edgechat-dark",
    dark=True,
    primary="#7fb7a8",
    secondary="#9aa7c7",
    accent="#d7a26b",
    warning="#d7a26b",
    error="#d97b7b",
    success="#8fb98a",
    foreground="#d6d9de",
    background="#15171b",
    surface="#1c1f25",
    panel="#272b33",
    variables={
        "border": "#7fb7a8",
        "border-blurred": "#343943",
        "input-cursor-background": "#d6d9de",
        "input-cursor-foreground": "#15171b",
        "input-selection-background": "#7fb7a8 30%",
        "block-cursor-background": "#7fb7a8",
        "block-cursor-foreground": "#15171b",
        "block-cursor-text-style": "none",
        "button-color-foreground": "#15171b",
        "scrollbar": "#343943",
        "scrollbar-hover": "#464d5a",
        "scrollbar-active": "#7fb7a8",
        "scrollbar-background": "#15171b",
        "scrollbar-background-hover": "#15171b",
        "scrollbar-background-active": "#15171b",
    },
)
LIGHT = Theme(
    name="edgechat-light",
    dark=False,
    primary="#2b776a",
    secondary="#4d5f8f",
    accent="#9a5b12",
    warning="#9a5b12",
    error="#ab3535",
    success="#3d7340",
    foreground="#1f2228",
    background="#fbfaf8",
    surface="#f2f0ec",
    panel="#e5e2dc",
    variables={
        "border": "#2b776a",
        "border-blurred": "#d2cec5",
        "input-cursor-background": "#1f2228",
        "input-cursor-foreground": "#fbfaf8",
        "input-selection-background": "#2b776a 25%",
        "block-cursor-background": "#2b776a",
        "block-cursor-foreground": "#fbfaf8",
        "block-cursor-text-style": "none",
        "button-color-foreground": "#fbfaf8",
        "scrollbar": "#d2cec5",
        "scrollbar-hover": "#bdb8ad",
        "scrollbar-active": "#2b776a",
        "scrollbar-background": "#fbfaf8",
        "scrollbar-background-hover": "#fbfaf8",
        "scrollbar-background-active": "#fbfaf8",
    },
)
NAMES = {"dark": DARK.name, "light": LIGHT.name}


class ThemeMemory:
    """The theme's name in a file. What can't be read or written is no trouble: it is only a colour."""

    def __init__(self, path: Path | None, default: str = "dark") -> None:
        """`path`: None remembers nothing. `default`: "dark" or "light"."""
        self._path = path
        self._default = NAMES[default]

    def recall(self) -> str:
        """The name that was remembered, or the default."""
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                return self._path.read_text(encoding="utf-8").strip() or self._default
        return self._default

    def remember(self, name: str) -> None:
        """Keep a name."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                paths.write_atomic(self._path, f"{name}\n".encode())
