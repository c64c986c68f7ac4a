"""Tokens' bytes to text, across token borders.

A token may end in the middle of a UTF-8 character. What could still become a character is held back;
what can't becomes U+FFFD, exactly as `bytes.decode("utf-8", "replace")` of the whole would give. Where an
answer is cut (by a limit, or by the person), a character that it had begun is left out of its text; where the
model itself ended there, it becomes U+FFFD.
"""

import codecs
from collections.abc import Callable, Sequence

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of a growing list of tokens."""

    __slots__ = ("_decode", "_decoder", "_piece")

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = _utf8("replace")
        self._decode = self._decoder.decode

    def feed(self, token: int) -> str:
        """The characters that `token` completes; "" where it completes none."""
        return self._decode(self._piece(token))

    @property
    def whole(self) -> bool:
        """Whether no character is begun and unfinished."""
        return not self._decoder.getstate()[0]

    def flush(self, *, cut: bool = False) -> str:
        """What was held back, now that nothing follows: "" or U+FFFD.

        Args:
            cut: more would have followed; a character that was begun is left out.
        """
        if cut and _begins_a_character(self._decoder.getstate()[0]):
            self._decoder.reset()
        return self._decode(b"", True)


def _begins_a_character(held: bytes) -> bool:
    """Whether what the decoder held back could become a character: half a surrogate, held too, can't."""
    return not (held[:1] == b"\xed" and held[1:2] >= b"\xa0")


def text_of(piece: Callable[[int], bytes], tokens: Sequence[int]) -> str:
    """The text of `tokens`, taken as a whole."""
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")


def n_tokens_within(piece: Callable[[int], bytes], tokens: Sequence[int], text: str, start: int = 0) -> int:
    """How many of the first `tokens` have a text that `text[start:]` begins with, ending on a character."""
    detokenizer = Detokenizer(piece)
    agreed = 0
    for count, token in enumerate(tokens, 1):
        characters = detokenizer.feed(token)
        if not text.startswith(characters, start):
            break
        start += len(characters)
        if characters and detokenizer.whole:  # a control token has no text: it counts if more follows
            agreed = count
    return agreed


def n_tokens_before(piece: Callable[[int], bytes], tokens: Sequence[int], n_characters: int) -> int:
    """How many of the first `tokens` it takes to write the first `n_characters` of their text."""
    detokenizer = Detokenizer(piece)
    written = 0
    for count, token in enumerate(tokens):
        if written >= n_characters and detokenizer.whole:
            return count
        written += len(detokenizer.feed(token))
    return len(tokens)
