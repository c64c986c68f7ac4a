"""Where questions are typed. What was typed is never lost."""

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea

LONGEST_HISTORY = 200
NEW_LINE_KEYS = frozenset({"shift+enter", "shift+\r", "alt+enter", "ctrl+j"})
"""Shift+Enter comes as one of two, or as Enter, as the terminal likes."""


class Recall:
    """Earlier questions, gone through with Up and Down; the draft is the newest of them."""

    def __init__(self, questions: list[str] | None = None) -> None:
        """`questions`: oldest first."""
        self._questions = (questions or [])[-LONGEST_HISTORY:]
        self._at = len(self._questions)
        self._draft = ""

    def add(self, question: str) -> None:
        """A question was sent; repeating the last one adds nothing."""
        if not self._questions or self._questions[-1] != question:
            self._questions = [*self._questions, question][-LONGEST_HISTORY:]
        self._at = len(self._questions)
        self._draft = ""

    def older(self, current: str) -> str | None:
        """The question before; `current` is kept where it is the draft. None at the oldest."""
        if self._at == 0:
            return None
        if self._at == len(self._questions):
            self._draft = current
        self._at -= 1
        return self._questions[self._at]

    def newer(self) -> str | None:
        """The question after, at last the draft; None where that is shown already."""
        if self._at == len(self._questions):
            return None
        self._at += 1
        return self._draft if self._at == len(self._questions) else self._questions[self._at]


class PromptArea(TextArea):
    """Enter sends; Shift+Enter, Alt+Enter and Ctrl+J begin a new line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "up", "Earlier question", show=False, id="prompt.older"),
        Binding("down", "down", "Later question", show=False, id="prompt.newer"),
        Binding("ctrl+u", "empty", "Empty the prompt", show=False, id="prompt.empty"),
    ]

    class Sent(Message):
        """The person pressed Enter; what is typed may be nothing."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Emptied(Message):
        """The person threw away what was typed."""

    def __init__(self, recall: Recall) -> None:
        super().__init__(
            id="prompt",
            soft_wrap=True,
            show_line_numbers=False,
            compact=True,
            highlight_cursor_line=False,
            placeholder=Content("Ask anything"),
            tab_behavior="focus",
        )
        self.recall = recall

    async def _on_key(self, event: events.Key) -> None:
        """All in the order in which it is typed: Textual runs bindings after letters that have come."""
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self._send()
        elif event.key in NEW_LINE_KEYS:
            event.stop()
            event.prevent_default()
            self._replace_via_keyboard("\n", *self.selection)
        elif event.key in self._bindings.key_to_bindings:  # moves and deletions
            for binding in self._bindings.get_bindings_for_key(event.key):
                if await self.app.run_action(binding.action, self):  # else it is for those around
                    event.stop()
                    event.prevent_default()
                    break
        # All else is the base's, which Textual calls by itself where the default was not prevented.

    def _send(self) -> None:
        """Hand the text up and begin anew; `give_back` takes it back where it was not wanted."""
        text = self.text
        if text.strip():
            self.recall.add(text)
            self.clear()
        self.post_message(self.Sent(text))

    def give_back(self, text: str) -> None:
        """A text was not taken: put it before what was typed since."""
        self.fill(text + self.text)

    def fill(self, text: str) -> None:
        """Replace the text, in a way that can be undone, with the cursor at its end."""
        self.replace(text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def action_empty(self) -> None:
        """Delete all that is typed; Ctrl+Z brings it back."""
        self.fill("")
        self.post_message(self.Emptied())

    def action_up(self) -> None:
        """Up a line; from the first line on, to the question before."""
        if self._row > 0:
            self.action_cursor_up()
        else:
            self._recall(self.recall.older(self.text))

    def action_down(self) -> None:
        """Down a line; from the last line on, to the question after."""
        text = self.recall.newer() if self._row >= self.wrapped_document.height - 1 else None
        if text is None:
            self.action_cursor_down()
        else:
            self._recall(text)

    @property
    def _row(self) -> int:
        """The line that the cursor is in, as they are wrapped."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    def _recall(self, text: str | None) -> None:
        if text is not None:
            self.fill(text)

    async def _on_paste(self, event: events.Paste) -> None:
        """Take line breaks as they are on other systems, too."""
        event.text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        # Textual calls the base's handler by itself, after this one.


class Prompt(Horizontal):
    """The area in its frame, with what the keys do on the frame."""

    def __init__(self, recall: Recall) -> None:
        super().__init__(id="prompt-box")
        self.area = PromptArea(recall)

    def compose(self) -> ComposeResult:
        """A sign and the area."""
        yield Static(Content("›"), id="prompt-sign")
        yield self.area

    def show_hint(self, hint: Content) -> None:
        """Say on the frame what the keys do now."""
        self.border_subtitle = hint
