"""Markdown as it streams. What is particular to Textual's own widget is kept in here."""

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Label, Markdown, Static
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from edgechat.chat.highlighting import highlighted, language_of
from edgechat.chat.plain import printable


def _parser() -> MarkdownIt:
    """GitHub's Markdown, but HTML is text like any other: what a model writes is never swallowed.

    A line ends where the model ended it, as in GitHub's comments: poems and addresses are no paragraphs.
    """
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("keep_lines", _keep_lines)
    return parser


def _keep_lines(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


class CopyCode(Static):
    """Copies the code that it stands above."""

    class Pressed(Message):
        """The person wants the code."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def on_click(self, event: events.Click) -> None:
        """Hand the code up."""
        event.stop()
        fence = next(node for node in self.ancestors if isinstance(node, CodeFence))
        self.post_message(self.Pressed(fence.code))


class CodeFence(MarkdownFence):
    """Code with its language above it, and a way to copy it."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Never guess the language: that would load every lexer there is."""
        return highlighted(code, language)

    def compose(self) -> ComposeResult:
        """A line about the code, then the code."""
        with Horizontal(classes="code--head"):
            yield Static(Content(language_of(self.lexer) or "text"), classes="code--language")
            yield CopyCode(Content("copy"), classes="code--copy")
        yield Label(self._highlighted_code, id="code-content", expand=True)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        await super()._update_from_block(block)
        if isinstance(block, CodeFence):
            for language in self.query(".code--language").results(Static):
                language.update(Content(language_of(self.lexer) or "text"))


class StreamingMarkdown(Markdown):
    """Markdown that grows.

    Textual's own MarkdownStream joins pieces that come too fast in a task of its own, which outlives its
    widget where the app ends in mid-answer. Here whoever appends waits until the piece is drawn.
    """

    BLOCKS = {  # noqa: RUF012 - as the base declares it
        **Markdown.BLOCKS,
        "fence": CodeFence,
        "code_block": CodeFence,
    }

    def __init__(self, text: str = "") -> None:
        super().__init__(printable(text), parser_factory=_parser, open_links=False)

    async def append_text(self, text: str) -> None:
        """Append a piece, and wait until it is drawn."""
        await self.append(printable(text))

    async def show(self, text: str) -> None:
        """Replace all, parsed as a whole, which corrects what pieces may have got wrong."""
        await self.update(printable(text))

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        """Show what has no widget as text, rather than not at all."""
        if not token.content.strip():
            return None
        block = self.BLOCKS["paragraph_open"](self, token)
        block.set_content(Content(token.content.rstrip()))
        return block
