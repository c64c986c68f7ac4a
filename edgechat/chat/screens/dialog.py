"""What all dialogs share."""

from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

Result = TypeVar("Result")


class Dialog(ModalScreen[Result | None], Generic[Result]):
    """A box over the chat. Escape closes it, and a click beside it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Close", id="dialog.close"),
    ]

    def action_cancel(self) -> None:
        """Close without a result."""
        self.dismiss(None)
