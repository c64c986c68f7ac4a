"""What all dialogs share."""

from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from edgechat.chat.styles import KEY

Result = TypeVar("Result")
CLOSE = Content.assemble(("Esc", KEY), " close")
SCROLL = Content.assemble(("Up", KEY), " ", ("Down", KEY), " scroll")


class Dialog(ModalScreen[Result | None], Generic[Result]):
    """A box over the chat. Escape closes it, and a click beside it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Close", id="dialog.close"),
    ]

    def action_cancel(self) -> None:
        """Close without a result."""
        self.dismiss(None)

    def tell_of_scrolling(self, scrolled: Widget) -> None:
        """Say how to scroll, where there is more than is in sight, once it is laid out."""

        def tell() -> None:
            more = scrolled.max_scroll_y > 0
            for hint in self.query(".dialog--hint").results(Static):
                hint.update(Content.assemble(SCROLL, "   ", CLOSE) if more else CLOSE)

        self.call_after_refresh(tell)
