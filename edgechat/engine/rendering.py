"""What turns a conversation into the text that the model continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from models.chat import ChatMessage


class Rendering(Protocol):
    """A conversation as text."""

    @property
    def text(self) -> str:
        """What the model continues."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Kinds of `messages.NoteKind`: what was changed on the way."""
        ...


class ChatRenderer(Protocol):
    """A model's chat template."""

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> Rendering:
        """The conversation as text.

        Raises:
            models.errors.ModelError: the template can't be rendered.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlainText:
    """A conversation as a transcript."""

    text: str
    notes: tuple[str, ...] = ("no_template",)


class PlainRenderer:
    """For a model without a chat template: a transcript that it continues as it would any text."""

    stop = ("\nUser:", "\nAssistant:")
    """A base model knows no end of a turn, and goes on to write the person's next line."""

    def __init__(self, *, refused: bool = False) -> None:
        """`refused`: the model has a template, which can't be used; that was said when it was loaded."""
        self._notes = () if refused else ("no_template",)

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> PlainText:
        """`User: ...` and `Assistant: ...`, after the system message."""
        parts = []
        for message in messages:
            content = message.content.strip()
            if message.role == "system":
                parts.append(f"{content}\n\n" if content else "")
            else:
                parts.append(f"{message.role.capitalize()}: {content}\n")
        if add_generation_prompt:
            parts.append("Assistant:")
        return PlainText("".join(parts), self._notes)

    def completion(self, messages: Sequence[ChatMessage]) -> PlainText | None:
        """A person's only message as the beginning of a text, as it is; None for any other conversation."""
        messages = [one for one in messages if one.role != "system" or one.content.strip()]
        if len(messages) != 1 or messages[0].role != "user" or not messages[0].content:
            return None
        notes = tuple("completion" if note == "no_template" else note for note in self._notes)
        return PlainText(messages[0].content, notes)


_SENTENCES = {
    "no_template": "This is a base model without a chat template: it continues a transcript as plain text.",
    "completion": "This is a base model without a chat template: it continues your text as it is.",
}


def sentence(note: str) -> str:
    """What a renderer's note tells the person."""
    if note in _SENTENCES:
        return _SENTENCES[note]
    from models.chat_template import TemplateNote

    return TemplateNote(note).sentence
