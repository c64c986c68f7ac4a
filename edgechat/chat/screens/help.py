"""What the keys do."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from edgechat.chat.screens.dialog import CLOSE, Dialog

SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Asking",
        (
            ("Enter", "send"),
            ("Ctrl+J", "new line; also Alt+Enter and Shift+Enter, where the terminal sends them"),
            ("Up, Down", "earlier questions, from the first and last line"),
            ("Ctrl+U", "empty the prompt; Ctrl+Z brings it back"),
            ("Esc", "stop the answer"),
            ("Ctrl+R", "answer again"),
            ("F4", "edit the last question: Enter replaces, Esc keeps it"),
        ),
    ),
    (
        "Conversations",
        (
            ("Ctrl+N", "new conversation"),
            ("Ctrl+O", "all conversations: search, go on with one, delete"),
            ("F2", "system prompt; also Ctrl+S"),
        ),
    ),
    (
        "Reading",
        (
            ("PgUp, PgDn", "scroll; the mouse wheel does, too"),
            ("Ctrl+End", "go to the newest message; Ctrl+Home: to the first"),
            ("F3", "copy the last answer"),
            ("F6", "details of the last answer: time, context, drafts, seed"),
            ("Ctrl+C", "copy what is selected with the mouse; else stop the answer"),
        ),
    ),
    (
        "The app",
        (
            ("Ctrl+P", "all commands"),
            ("Ctrl+T", "light or dark"),
            ("F1", "this page; also Ctrl+G, where the terminal keeps F1 to itself"),
            ("Ctrl+Q", "quit; a running answer is saved"),
        ),
    ),
)
NOTES = (
    "In place of keys you can type /new, /again, /copy, /details, /system, /list, /theme, /help or /quit.",
    "Shift+Enter reaches an app in few terminals by itself (kitty, WezTerm, foot, Ghostty); in tmux, "
    "`set -s extended-keys on` helps. Ctrl+J always works.",
    "Copying uses the terminal's clipboard (OSC 52). Where nothing arrives: in tmux, `set -g "
    "set-clipboard on`; else hold Shift, select with the mouse and copy as usual.",
    "Everything is saved as it is written. The model runs in a process of its own: if it dies, "
    "the conversation stays, and the next question starts it again.",
)


class HelpScreen(Dialog[None]):
    """Keys in groups, then what there is to know beside them."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,ctrl+g,q", "cancel", "Close", show=False, priority=True),
        Binding("up", "scroll(-1)", "Up", show=False),
        Binding("down", "scroll(1)", "Down", show=False),
        Binding("pageup", "scroll(-10)", "Page up", show=False),
        Binding("pagedown", "scroll(10)", "Page down", show=False),
    ]

    def compose(self) -> ComposeResult:
        """One text that scrolls."""
        with Vertical(classes="dialog", id="help"):
            yield Static(Content("Keys"), classes="dialog--title")
            with VerticalScroll(id="help-text", can_focus=False):
                for title, rows in SECTIONS:
                    yield Static(Content(title), classes="help--section")
                    for keys, what in rows:
                        with Vertical(classes="help--row"):
                            yield Static(Content(keys), classes="help--keys")
                            yield Static(Content(what), classes="help--what")
                yield Static(Content("\n\n").join(Content(note) for note in NOTES), classes="help--notes")
            yield Static(CLOSE, classes="dialog--hint")

    def on_mount(self) -> None:
        """Say how to scroll, where there is more than is in sight."""
        self.tell_of_scrolling(self.query_one("#help-text"))

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one("#help-text", VerticalScroll).scroll_relative(y=lines, animate=False)
