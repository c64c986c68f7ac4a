"""How the controller's parts reach whoever shows the chat."""

from collections.abc import Callable
from dataclasses import replace

from edgechat.chat.events import ChatEvent, ChatStatus, StatusChanged


class Announcer:
    """Tells events, and keeps the status that they lead to."""

    def __init__(self, status: ChatStatus, listener: Callable[[ChatEvent], None]) -> None:
        """`listener`: told of everything, on the event loop's thread."""
        self.status = status
        self.tell = listener

    def set(self, **changes: object) -> None:
        """Change fields of the status; told where that makes a difference."""
        status = replace(self.status, **changes)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            self.tell(StatusChanged(status))
