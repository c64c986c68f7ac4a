"""Texts that no context of the model's could hold, told from their length: before they are tokenized.

Tokenizing 20 MB takes a minute, and can't be interrupted.
"""

from collections.abc import Callable
from functools import cached_property

import msgspec

from edgechat.engine.process.messages import Generate
from edgechat.engine.window import PromptTooLong
from edgechat.runtimes.base import Tokenizer

PLAUSIBLE = 16
"""Texts of so many bytes a token are let through: the longest token needn't be known for them."""
LONG = 2**20
"""Texts of more characters lose their middle before they are tokenized."""
PLACES = "\n "
"""Where a text is cut, if it can be: a tokenizer looks at what lies between these alone."""


class Lengths:
    """What fits, at the very best."""

    def __init__(self, tokenizer: Tokenizer, n_ctx: int) -> None:
        self._tokenizer = tokenizer
        self._n_ctx = n_ctx

    def check(self, request: Generate) -> None:
        """Refuse a prompt, or a last message, that may not be cut and can't fit.

        Earlier messages go where there is no room; what they come to does not matter.

        Raises:
            PromptTooLong: it can't.
        """
        text = request.messages[-1].content if request.messages else request.prompt
        if request.overflow != "refuse" or 4 * len(text) <= PLAUSIBLE * self._n_ctx:
            return
        n_bytes = len(text.encode("utf-8", "replace"))
        if n_bytes <= PLAUSIBLE * self._n_ctx:
            return
        least = -(-n_bytes // self._longest)
        if least > self._n_ctx:
            raise PromptTooLong(
                f"the prompt of {n_bytes:,} bytes is far too long: it has {least:,} tokens at least, and the "
                f"context holds {self._n_ctx:,}: give a part of it"
            )

    def cut(self, request: Generate) -> tuple[Generate, int]:
        """Take out of the middle of long texts, where they may be cut, what can't be seen in any case.

        What is left of each has more tokens on either side than the context holds. So the window, which
        keeps a part of either side, keeps the same tokens of it as it would of the whole.

        Returns:
            The request with what is left, and about how many tokens were taken out of it.
        """
        if request.overflow != "window":
            return request, 0
        if not request.messages:
            prompt, n_cut = self._without_middle(request.prompt)
            return (msgspec.structs.replace(request, prompt=prompt) if n_cut else request), n_cut
        n_tokens = 0
        messages = list(request.messages)
        for i, message in enumerate(messages):
            content, n_cut = self._without_middle(message.content)
            if n_cut:
                messages[i] = msgspec.structs.replace(message, content=content)
                n_tokens += n_cut
        return (msgspec.structs.replace(request, messages=tuple(messages)) if n_tokens else request), n_tokens

    def _without_middle(self, text: str) -> tuple[str, int]:
        """A text without its middle, and about how many tokens that had; all of it where it isn't long."""
        if len(text) <= LONG:
            return text, 0
        head, n_head = self._end(text, lambda size: text[: _last_place(text, size)])
        tail, n_tail = self._end(text, lambda size: text[_last_place(text, len(text) - size) :])
        n_characters = len(text) - len(head) - len(tail)
        if n_characters < len(text) // 2:
            return text, 0
        return head + tail, round(n_characters * (n_head + n_tail) / (len(head) + len(tail)))

    def _end(self, text: str, end: Callable[[int], str]) -> tuple[str, int]:
        """An end of a text with more tokens than the context holds, and how many it has.

        Args:
            text: the whole.
            end: about so many characters of it.
        """
        size = 4 * self._n_ctx
        while True:
            part = end(size)
            n_tokens = len(self._tokenizer.encode(part))
            if n_tokens > self._n_ctx or 4 * size > len(text):
                return part, n_tokens
            size *= 2

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token, by what it stands for or by the name that a text may have of it."""
        piece, name = self._tokenizer.piece, self._tokenizer.name
        return max(
            (len(piece(token)) or len(name(token).encode()) for token in range(self._tokenizer.n_vocab)),
            default=1,
        )


def _last_place(text: str, stop: int) -> int:
    """The last index up to `stop` where `text` is cut best; `stop` itself where there is none nearby."""
    start = max(stop - 4096, 0)
    places = (text.rfind(place, start, stop + 1) for place in PLACES)
    return next((at for at in places if at > 0), stop)
