"""Summaries of what leaves the window: what the model is asked, and how much of its answer is kept.

The question is put behind what is about to go, as the person's next message in the model's own template: the
cells of all before it are there already. What the model answers is pinned behind the system prompt, at the
beginning of the first message that stays, marked as its own words. A later summary takes the place of the
one before, which the model saw when it wrote it.
"""

import re

from edgechat.engine.holes import Filling
from edgechat.engine.rendering import ChatRenderer, PlainRenderer
from edgechat.engine.sequence import TextTokens
from edgechat.records import SamplingSettings
from models.chat import ChatMessage
from models.errors import ModelError

INSTRUCTION = (
    "Summarize our conversation so far in a few short sentences, in its own language. Keep the facts, "
    "names, numbers and decisions that are needed to go on, and what an earlier summary says. "
    "Write only the summary."
)
BEFORE = "Summary of the earlier conversation, written by the model:\n"
AFTER = "\n\n"
SHARE = 8
"""A summary takes at most 1/SHARE of the context,"""
MOST = 384
"""and at most so many tokens: the answer waits while they are written."""
LEAST = 24
"""In fewer tokens nothing can be summed up."""
SECONDS = 30.0
"""Longest that an answer waits for a summary."""
SAMPLING = SamplingSettings(temperature=0, repetition_penalty=1.1)

_PROBES = ("edgechat0probe", "edgechat1probe")
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_TITLE = re.compile(r"\A[\s*#_]*(?:(?:here is )?(?:the |a )?summary[^\n:]{0,60}:)[\s*_]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…](?=[\s\"'”’)]|\Z)|[。！？\n]")


class Summaries:
    """What a model, a template and a context allow."""

    def __init__(self, renderer: ChatRenderer, texts: TextTokens, budget: int) -> None:
        """See whether there can be any.

        Args:
            renderer: what renders conversations.
            texts: what tokenizes them.
            budget: tokens of context.
        """
        self._texts = texts
        self.limit = min(budget // SHARE, MOST)
        """Tokens that a summary may take, the words around it among them."""
        self.question: tuple[int, ...] = ()
        """What is appended to an assistant's unfinished message to ask for a summary."""
        self.n_tokens = 0
        """Tokens that the model may write."""
        self.trouble = ""
        """Why there can be none, as a sentence; empty where there can."""
        if isinstance(renderer, PlainRenderer):
            self.trouble = (
                "This model has no chat template: what leaves its context is forgotten, and not summed up."
            )
            return
        asked = _question(renderer)
        if asked is None:
            self.trouble = "What leaves the context is not summed up: the chat template is too unusual."
            return
        self.question = tuple(texts.going_on(asked))
        around = len(texts.going_on(BEFORE)) + len(texts.going_on(AFTER))
        self.n_tokens = self.limit - around
        if self.n_tokens < LEAST or self.reserve > budget // 2:
            needed = max(SHARE * (around + LEAST), 2 * self.reserve)
            self.trouble = (
                f"What leaves the context is not summed up: it takes a context of about {needed:,} tokens "
                f"(--ctx), and this one has {budget:,}."
            )

    @property
    def possible(self) -> bool:
        """Whether there can be summaries."""
        return not self.trouble

    @property
    def reserve(self) -> int:
        """Tokens of context that must be free to ask for one and to write it."""
        return len(self.question) + self.limit

    def filling(self, text: str, at: int) -> Filling | None:
        """What stands in for what went: `text`, and that the model wrote it.

        Args:
            text: a summary, as `usable` gives it.
            at: index of the token before which it lies.

        Returns:
            None where there is no text, or it is longer than the limit.
        """
        if not text:
            return None
        # The model's words are no markup: a control token that they spell out stays a text.
        tokens = [
            *self._texts.going_on(BEFORE),
            *self._texts.going_on(text, special=False),
            *self._texts.going_on(AFTER),
        ]
        return Filling(at, tuple(tokens), text) if len(tokens) <= self.limit else None


def usable(text: str, *, whole: bool) -> str:
    """What of a model's answer is kept as the summary; "" where nothing can be.

    Args:
        text: what the model wrote.
        whole: it had ended; else its last sentence is not, and is left out.
    """
    text = _THOUGHTS.sub("", text)
    if "<think>" in text:
        return ""
    text = _TITLE.sub("", text.strip()).strip()
    if not whole:
        ends = [found.end() for found in _SENTENCE_END.finditer(text)]
        text = text[: ends[-1]].strip() if ends else ""
    return text


def _question(renderer: ChatRenderer) -> str | None:
    """What the template writes from the end of an answer's text to the beginning of the next, where the
    person asks for a summary in between; None where that can't be told."""
    user, answer = _PROBES
    messages = [
        ChatMessage("user", user),
        ChatMessage("assistant", answer),
        ChatMessage("user", INSTRUCTION),
    ]
    try:
        text = renderer.render(messages, True).text
    except ModelError:
        return None
    _, found, asked = text.partition(answer)
    return asked if found and asked.count(INSTRUCTION) == 1 and answer not in asked else None
