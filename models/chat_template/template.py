"""A model's chat template, and the conversations that it would refuse made acceptable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from jinja2 import Template

from models.chat import ChatMessage
from models.chat_template.budget import Budget, OverBudget, begin
from models.chat_template.environment import ChatEnvironment
from models.chat_template.fold import fold_system, fold_turns, has_repeated_roles, has_system
from models.chat_template.limits import Limits, within
from models.errors import UnsupportedTemplate

T = TypeVar("T")

_PROBE = "Zqxsentinel"
"""Text that no template writes by itself. Letters only, so that no filter changes it."""


class TemplateNote(StrEnum):
    """What was changed in a conversation so that the template takes it."""

    SYSTEM_FOLDED = "system_folded"
    TURNS_FOLDED = "turns_folded"

    @property
    def sentence(self) -> str:
        """What the person is told."""
        return _SENTENCES[self]


_SENTENCES = {
    TemplateNote.SYSTEM_FOLDED: "This model takes no system prompt: it went in front of your first message.",
    TemplateNote.TURNS_FOLDED: "This model takes no two messages of one side in a row: they were joined.",
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model's text."""

    text: str
    """Begins with the BOS's name where the template writes one; the tokenizer must not add another."""
    notes: tuple[TemplateNote, ...] = ()
    """What had to be changed; the same for each rendering, to be said once per conversation."""


class ChatTemplate:
    """A chat template in Jinja, as transformers renders it."""

    def __init__(
        self,
        source: str,
        *,
        bos: str | None = None,
        eos: str | None = None,
        variables: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`.

        `bos` and `eos` are the names of these tokens ("<s>"), None where the model has none; `variables` are
        more of these (`pad_token`, ...) or settings of the template; `now` is what `strftime_now` formats.

        Raises:
            UnsupportedTemplate: it is empty, too long, or no template.
        """
        self.source = source
        self._limits = limits or Limits()
        tokens = {"bos_token": bos, "eos_token": eos}
        self._variables = {name: text for name, text in tokens.items() if text is not None}
        self._variables |= variables or {}
        self._now = now
        if not source.strip():
            raise UnsupportedTemplate("the chat template is empty")
        if len(source) > self._limits.source_chars:
            raise UnsupportedTemplate(
                f"the chat template is too long: {len(source)} characters, not {self._limits.source_chars}"
            )
        self._template = self._limited("compiled", self._compile)

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> Rendered:
        """The conversation as text, with the head of the model's answer where `add_generation_prompt`.

        Raises:
            UnsupportedTemplate: the template refuses the conversation, fails, or is over its limits.
        """
        notes = []
        if has_system(messages) and self.refuses_system:
            if any(message.role == "system" and message.content.strip() for message in messages):
                notes.append(TemplateNote.SYSTEM_FOLDED)
            messages = fold_system(messages)
        if has_repeated_roles(messages) and self.refuses_repeated_roles:
            messages = fold_turns(messages)
            notes.append(TemplateNote.TURNS_FOLDED)
        return Rendered(self._render(messages, add_generation_prompt), tuple(notes))

    @cached_property
    def refuses_system(self) -> bool:
        """Whether a system prompt makes the template fail, or is dropped in silence."""
        question = ChatMessage("user", "Hello")
        return self._works(question) and not self._shows(ChatMessage("system", _PROBE), question)

    @cached_property
    def refuses_repeated_roles(self) -> bool:
        """Whether two messages of one role in a row make the template fail, or one of them is dropped."""
        question = ChatMessage("user", _PROBE)
        return self._works(question) and not self._shows(question, question, times=2)

    @cached_property
    def after_answer(self) -> str:
        """The text that ends an answer of the model ("<|im_end|>\\n"); "" where none does."""
        messages = (ChatMessage("user", "Hello"), ChatMessage("assistant", _PROBE))
        try:
            text = self.render(messages, add_generation_prompt=False).text
        except UnsupportedTemplate:
            return ""
        _, found, after = text.rpartition(_PROBE)
        return after if found else ""

    def _works(self, *messages: ChatMessage) -> bool:
        return self._shows(*messages, times=0)

    def _shows(self, *messages: ChatMessage, times: int = 1) -> bool:
        try:
            return self._render(messages, add_generation_prompt=True).count(_PROBE) >= times
        except UnsupportedTemplate:
            return False

    def _compile(self) -> Template:
        begin(Budget(self._limits))
        return ChatEnvironment(self._now).template(self.source, self._limits.source_nodes)

    def _render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool) -> str:
        own = [{"role": str(message.role), "content": str(message.content)} for message in messages]
        longest = self._limits.output_chars + sum(len(message["content"]) for message in own)

        def work() -> str:
            begin(Budget(self._limits, own))
            chunks, size = [], 0
            for chunk in self._template.generate(
                messages=own,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            ):
                chunks.append(chunk)
                size += len(chunk)
                if size > longest:
                    raise OverBudget(f"it writes more than {longest} characters")
            return "".join(chunks)

        return self._limited("rendered", work)

    def _limited(self, verb: str, work: Callable[[], T]) -> T:
        try:
            return within(self._limits.seconds, work)
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UnsupportedTemplate(f"the chat template can't be {verb}: {reason}") from None
