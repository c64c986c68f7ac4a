"""Asks before something that can't be undone."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Static

from edgechat.chat.screens.dialog import Dialog


class ConfirmScreen(Dialog[bool]):
    """A question with two buttons; the harmless one has the focus."""

    CSS_PATH = "confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "confirm", "Yes", show=False),
        Binding("n", "cancel", "No", show=False),
        Binding("left,right,up,down", "other_button", "Other button", show=False),
    ]

    def __init__(self, question: Content, detail: str, yes: str, no: str) -> None:
        super().__init__()
        self._question = question
        self._detail = detail
        self._yes = yes
        self._no = no

    def compose(self) -> ComposeResult:
        """The question and the buttons."""
        with Vertical(classes="dialog", id="confirm"):
            yield Static(self._question, classes="confirm--question")
            yield Static(Content(self._detail), classes="confirm--detail")
            with Horizontal(classes="dialog--buttons"):
                yield Button(self._no, id="no", compact=True)
                yield Button(self._yes, id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        """Focus the button that changes nothing."""
        self.query_one("#no", Button).focus()

    @on(Button.Pressed, "#yes")
    def action_confirm(self) -> None:
        """Do it."""
        self.dismiss(True)

    @on(Button.Pressed, "#no")
    def action_cancel(self) -> None:
        """Leave it."""
        self.dismiss(False)

    def action_other_button(self) -> None:
        """Move the focus."""
        self.focus_next()
