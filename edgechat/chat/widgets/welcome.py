"""What is shown before the first question."""

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from edgechat.chat.plain import one_line
from edgechat.chat.styles import KEY, MUTED

EXAMPLES = (
    "Explain how tides work, in three sentences.",
    "Write a haiku about a lighthouse.",
    "Show me a Python function that reverses a string.",
)
KEYS = (("Enter", "send"), ("Ctrl+O", "conversations"), ("F2", "system prompt"), ("F1", "help"))


class Example(Static):
    """A question to begin with; a click takes it into the prompt."""

    class Chosen(Message):
        """The person wants it."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, text: str) -> None:
        super().__init__(Content.assemble(("›  ", "$primary"), text), classes="welcome--example")
        self._text = text

    def on_click(self, event: events.Click) -> None:
        """Hand the question up."""
        event.stop()
        self.post_message(self.Chosen(self._text))


class Keys(Static):
    """What the first keys do, on one line: as many of them as fit."""

    def render(self) -> Content:
        """The line."""
        for gap, keys in (("   ", KEYS), ("  ", KEYS), ("  ", (*KEYS[:2], KEYS[-1])), ("  ", KEYS[-1:])):
            line = Content(gap).join(Content.assemble((key, KEY), " ", (what, MUTED)) for key, what in keys)
            if line.cell_length <= self.content_size.width:
                break
        return line


class Welcome(Vertical):
    """A name, a promise, three questions and four keys."""

    def __init__(self, model: str) -> None:
        super().__init__(id="welcome")
        self._model = model
        self._model_line = Static(classes="welcome--model")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield Static(Content("edgechat"), classes="welcome--name")
        yield self._model_line
        yield Static(
            Content("It runs on this machine. Nothing you type leaves it."), classes="welcome--promise"
        )
        yield Static(Content("Try one of these"), classes="welcome--label")
        for text in EXAMPLES:
            yield Example(text)
        yield Keys(classes="welcome--keys")

    def on_mount(self) -> None:
        """Say which model it is."""
        self.show_model(self._model)

    def show_model(self, model: str) -> None:
        """The model's name, as soon as the engine says it."""
        self._model = model
        line = Content.assemble(("You are talking to ", MUTED), one_line(model))
        self._model_line.update(line)
