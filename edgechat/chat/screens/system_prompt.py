"""Where the system prompt is written."""

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Static, TextArea

from edgechat.chat.screens.dialog import Dialog
from edgechat.chat.styles import KEY
from edgechat.chat.widgets.prompt import NEW_LINE_KEYS


class SystemPromptArea(TextArea):
    """The same keys begin a new line as in the prompt."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key in NEW_LINE_KEYS:
            event.stop()
            event.prevent_default()
            self._replace_via_keyboard("\n", *self.selection)


class SystemPromptScreen(Dialog[str]):
    """A text for the whole conversation; its result is the text, None where it was left as it was."""

    CSS_PATH = "system_prompt.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,f2", "save", "Save", priority=True, id="system_prompt.save"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """What it is, the text, the buttons."""
        with Vertical(classes="dialog", id="system-prompt"):
            yield Static(Content("System prompt"), classes="dialog--title")
            yield Static(
                Content("Tells the model how to behave, from the next question of this conversation on."),
                classes="dialog--note",
            )
            yield SystemPromptArea(
                self._text,
                id="system-prompt-text",
                soft_wrap=True,
                compact=True,
                highlight_cursor_line=False,
                tab_behavior="focus",
                placeholder=Content("For example: You are a patient teacher. Answer in short sentences."),
            )
            with Horizontal(classes="dialog--buttons"):
                yield Static(
                    Content.assemble(
                        ("Ctrl+S", KEY),
                        " save   ",
                        ("Esc", KEY),
                        " leave as it was",
                    ),
                    classes="dialog--hint",
                )
                yield Button("Save", id="save", variant="primary", compact=True)

    def on_mount(self) -> None:
        """Put the cursor at the end of the text."""
        area = self.query_one(TextArea)
        area.cursor_blink = self.app.animation_level != "none"
        area.move_cursor(area.document.end)
        area.focus()

    @on(Button.Pressed, "#save")
    def action_save(self) -> None:
        """Close with the text."""
        self.dismiss(self.query_one(TextArea).text)
