"""One entry of the transcript, as it is shown."""

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from edgechat.chat.entries import Entry, Kind, Severity
from edgechat.chat.plain import printable
from edgechat.chat.styles import LINE, MUTED
from edgechat.chat.widgets.markdown import StreamingMarkdown
from edgechat.history import Status

ENDINGS = {
    Status.STOPPED: "stopped",
    Status.LENGTH: "cut off at a limit",
    Status.FAILED: "cut short",
    Status.PARTIAL: "cut short",
}
SUMMARY_TITLE = "The model goes on with its own summary of it:"
LONGEST_SHOWN = 20_000
"""Characters of a question that are shown at once; a megabyte takes seconds to draw."""
SIGNS = {Severity.INFORMATION: "·", Severity.WARNING: "!", Severity.ERROR: "×"}


class UnseenLine(Static):
    """A line below the last message that the model no longer sees."""

    def __init__(self, n_messages: int) -> None:
        """`n_messages`: how many it doesn't see."""
        super().__init__(classes="unseen")
        self._words = f"{n_messages:,} message{'s' * (n_messages != 1)}"

    def render(self) -> Content:
        """The longest wording that fits."""
        width = self.content_size.width
        for words in (
            f"the model no longer sees what is above this line: {self._words}",
            f"no longer seen by the model: {self._words}",
            f"not seen: {self._words}",
        ):
            spare = width - len(words) - 2
            if spare >= 4:
                break
        left = max(spare // 2, 1)
        right = max(spare - left, 1)
        return Content.assemble(("─" * left, LINE), f" {words} ", ("─" * right, LINE))


class SummaryFold(Static):
    """What the model wrote of the messages above the line: one line of it, and with a click all."""

    def __init__(self, text: str) -> None:
        """`text`: the summary."""
        super().__init__(classes="summary")
        self._text = printable(text)
        self._open = False

    def render(self) -> Content:
        """The beginning, or all."""
        whole = f"{SUMMARY_TITLE} {self._text}"
        if self._open:
            return Content(f"▾ {whole}")
        line = " ".join(whole.split())
        width = max(self.content_size.width - 2, 1)
        return Content(f"▸ {line if len(line) <= width else line[: width - 1].rstrip() + '…'}")

    def on_click(self) -> None:
        """Unfold, or fold."""
        self._open = not self._open
        self.refresh(layout=True)


class EntryView(Vertical):
    """Base of the views."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(classes=f"entry {entry.kind}")
        self.entry = entry
        self._marks: list[Static] = []

    async def show(self, entry: Entry) -> None:
        """Show another version of the entry."""
        self.entry = entry

    async def append_text(self, text: str) -> None:
        """More of the text came."""

    async def mark(self, n_messages: int, summary: str = "") -> None:
        """Draw a line below: the model no longer sees this message, and `n_messages` in all; 0: no line.

        Args:
            n_messages: how many it doesn't see.
            summary: what it wrote of them, and sees in their place.
        """
        for widget in self._marks:
            await widget.remove()
        self._marks = [UnseenLine(n_messages)] if n_messages else []
        if n_messages and summary:
            self._marks.append(SummaryFold(summary))
        await self.mount_all(self._marks)


class QuestionText(Static):
    """What the person said; of what is very long the beginning, and with a click all."""

    def __init__(self, text: str) -> None:
        """`text`: the question."""
        super().__init__(classes="question--text")
        self._text = printable(text).rstrip()
        self._folded = len(self._text) > LONGEST_SHOWN

    def render(self) -> Content:
        """The beginning, or all."""
        if not self._folded:
            return Content(self._text)
        n_more = len(self._text) - LONGEST_SHOWN
        more = f"▸ {n_more:,} more character{'s' * (n_more != 1)}: a click shows all"
        return Content.assemble(self._text[:LONGEST_SHOWN], "…\n", (more, MUTED))

    def on_click(self) -> None:
        """Unfold."""
        if self._folded:
            self._folded = False
            self.refresh(layout=True)


class QuestionView(EntryView):
    """What the person said, as they typed it."""

    def compose(self) -> ComposeResult:
        """The text."""
        yield QuestionText(self.entry.text)


class NoticeView(EntryView):
    """What the app says."""

    def compose(self) -> ComposeResult:
        """A sign and the text."""
        severity = self.entry.severity
        self.add_class(f"-{severity}")
        with Horizontal(classes="notice--row"):
            yield Static(Content(SIGNS[severity]), classes="notice--sign")
            yield Static(Content(printable(self.entry.text)), classes="notice--text")


class AnswerView(EntryView):
    """What the model said, as Markdown, and how it ended where it didn't end by itself."""

    def __init__(self, entry: Entry, *, growing: bool) -> None:
        """`growing`: the answer is under way; otherwise one that is PARTIAL was cut."""
        super().__init__(entry)
        self._growing = growing
        self._markdown = StreamingMarkdown(entry.text)
        self._ending = Static(classes="answer--ending")

    def compose(self) -> ComposeResult:
        """The text and the ending."""
        yield self._markdown
        yield self._ending

    def on_mount(self, event: events.Mount) -> None:
        """An answer that ended by itself needs no remark."""
        self._show_ending()

    async def show(self, entry: Entry) -> None:
        """The answer is whole now: parse it as a whole."""
        await super().show(entry)
        self._growing = False
        await self._markdown.show(entry.text)
        self._show_ending()

    async def append_text(self, text: str) -> None:
        """More of the answer came."""
        await self._markdown.append_text(text)

    def _show_ending(self) -> None:
        text = "" if self._growing else ENDINGS.get(self.entry.status, "")
        self._ending.update(Content(f"— {text}"))
        self._ending.display = bool(text)


def view_of(entry: Entry, *, growing: bool) -> EntryView:
    """The widget for an entry."""
    match entry.kind:
        case Kind.USER:
            return QuestionView(entry)
        case Kind.ASSISTANT:
            return AnswerView(entry, growing=growing)
        case Kind.NOTICE:
            return NoticeView(entry)
