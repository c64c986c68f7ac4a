"""Texts that no context of the model's could hold, told from their bytes: before they are tokenized.

Tokenizing 20 MB takes a minute, and can't be interrupted.
"""

from functools import cached_property

from edgechat.engine.process.messages import Generate
from edgechat.engine.window import PromptTooLong
from edgechat.runtimes.base import Tokenizer

PLAUSIBLE = 16
"""Texts of so many bytes a token are let through: the longest token needn't be known for them."""


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

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token, by what it stands for or by the name that a text may have of it."""
        piece, name = self._tokenizer.piece, self._tokenizer.name
        return max(
            (len(piece(token)) or len(name(token).encode()) for token in range(self._tokenizer.n_vocab)),
            default=1,
        )
