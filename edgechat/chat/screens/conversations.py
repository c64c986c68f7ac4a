"""The saved conversations: search, go on with one, delete."""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from edgechat.chat.plain import one_line
from edgechat.chat.screens.confirm import ConfirmScreen
from edgechat.chat.screens.dialog import CLOSE, Dialog
from edgechat.chat.styles import KEY, MUTED
from edgechat.errors import EdgechatError
from edgechat.history import Conversation, Found, HistoryError, HistoryStore

HINT = Content.assemble(("Enter", KEY), " open   ", ("Ctrl+D", KEY), " delete   ", CLOSE)


def when(moment: float, now: float) -> str:
    """A time as people say it: "14:02", "yesterday", "3 March", "3 March 2025"."""
    then, today = time.localtime(moment), time.localtime(now)
    yesterday = time.localtime(now - 86_400)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if then[:3] == yesterday[:3]:
        return "yesterday"
    day = f"{then.tm_mday} {time.strftime('%B', then)}"
    return day if then.tm_year == today.tm_year else f"{day} {then.tm_year}"


def describe(found: Found, now: float, *, current: bool) -> Content:
    """Two lines about a conversation."""
    conversation = found.conversation
    count = conversation.n_messages
    details = [
        when(conversation.updated, now),
        f"{count} message{'' if count == 1 else 's'}",
        one_line(conversation.model),
        f"no. {conversation.id}",
    ]
    below = one_line(found.excerpt) or "  ·  ".join(details)
    marker = ("● ", "$primary") if current else "  "
    return Content.assemble(
        marker, (one_line(conversation.title) or "Untitled", "bold"), "\n  ", (below, MUTED)
    )


class ConversationsScreen(Dialog[int]):
    """A search field over a list; its result is the conversation to go on with."""

    CSS_PATH = "conversations.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, priority=True),
        Binding("down", "move(1)", "Down", show=False, priority=True),
        Binding("pageup", "move(-5)", "Page up", show=False, priority=True),
        Binding("pagedown", "move(5)", "Page down", show=False, priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True, id="conversations.delete"),
        Binding("ctrl+o", "cancel", "Close", show=False, priority=True),
    ]

    class Deleted(Message):
        """The person wants a conversation deleted, and said so twice."""

        def __init__(self, conversation_id: int) -> None:
            super().__init__()
            self.conversation_id = conversation_id

    def __init__(
        self,
        store: HistoryStore,
        current: int | None,
        now: float,
        check_deletable: Callable[[Conversation], None],
    ) -> None:
        """Args:
        store: the conversations.
        current: the number of the one that is shown.
        now: seconds since the epoch.
        check_deletable: raises an EdgechatError for one that can't be deleted now.
        """
        super().__init__()
        self._check_deletable = check_deletable
        self._store = store
        self._current = current
        self._now = now
        self._found: list[Found] = []

    def compose(self) -> ComposeResult:
        """Title, field, list, keys."""
        with Vertical(classes="dialog", id="conversations"):
            yield Static(Content("Conversations"), classes="dialog--title")
            search = Input(placeholder="Search in titles and messages", id="search", compact=True)
            search.cursor_blink = self.app.animation_level != "none"
            yield search
            yield OptionList(id="found", compact=True)
            yield Static(Content(""), id="nothing")
            yield Static(CLOSE, classes="dialog--hint")

    def on_mount(self) -> None:
        """List all, newest first."""
        self.query_one("#found", OptionList).can_focus = False
        self.query_one(Input).focus()
        self.search("")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.search(event.value)

    @work(exclusive=True, group="search", exit_on_error=False)
    async def search(self, text: str) -> None:
        """List what fits."""
        try:
            self._found = await asyncio.to_thread(self._store.search, text)
        except HistoryError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        found = self.query_one("#found", OptionList)
        highlighted = found.highlighted
        found.set_options(
            Option(describe(one, self._now, current=one.conversation.id == self._current))
            for one in self._found
        )
        nothing = self.query_one("#nothing", Static)
        nothing.update(Content("Nothing found." if text.strip() else "No conversations yet."))
        nothing.display = not self._found
        found.display = bool(self._found)
        self.query_one(".dialog--hint", Static).update(HINT if self._found else CLOSE)
        if self._found:
            found.highlighted = min(highlighted or 0, len(self._found) - 1)

    def action_move(self, rows: int) -> None:
        """Move the highlight."""
        found = self.query_one("#found", OptionList)
        if self._found:
            found.highlighted = max(0, min((found.highlighted or 0) + rows, len(self._found) - 1))

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self._open(self.query_one("#found", OptionList).highlighted)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self._open(event.option_index)

    def _open(self, index: int | None) -> None:
        if index is not None and index < len(self._found):
            self.dismiss(self._found[index].conversation.id)

    @work
    async def action_delete(self) -> None:
        """Delete the highlighted one, after a question."""
        index = self.query_one("#found", OptionList).highlighted
        if index is None or index >= len(self._found):
            return
        conversation = self._found[index].conversation
        try:
            self._check_deletable(conversation)
        except EdgechatError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        title = one_line(conversation.title) or "Untitled"
        question = ConfirmScreen(
            Content.assemble("Delete “", title, "”?"), "It can't be undone.", "Delete", "Keep"
        )
        if await self.app.push_screen_wait(question):
            self.post_message(self.Deleted(conversation.id))

    def refresh_list(self) -> None:
        """Something was deleted: list anew."""
        self.search(self.query_one(Input).value)

    def on_click(self, event: events.Click) -> None:
        """A click beside the box closes it."""
        if event.widget is self:
            self.dismiss(None)
