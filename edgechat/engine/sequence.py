"""The tokens of a conversation, as they were rendered and generated."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TypeVar

from edgechat.engine.detokenize import n_tokens_within, text_of
from edgechat.engine.holes import Holes
from edgechat.engine.rendering import ChatRenderer
from edgechat.runtimes.base import Tokenizer
from models.chat import ChatMessage
from models.errors import ModelError


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the conversation's text that was tokenized in one go, or generated as one answer."""

    text: str
    tokens: tuple[int, ...]
    generated: bool = False


class Transcript:
    """A conversation's text and tokens. What was tokenized or generated once keeps its tokens."""

    __slots__ = ("segments",)

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = tuple(segments)

    @property
    def tokens(self) -> list[int]:
        """All tokens, in order."""
        return list(chain.from_iterable(segment.tokens for segment in self.segments))

    def agreed(self, text: str, piece: Callable[[int], bytes]) -> "Transcript":
        """The beginning of this transcript that `text` begins with too, up to the end of an answer in it.

        Of an answer, as many tokens as agree: each was the model's own choice. What was rendered after the
        last answer is left out: only tokenized together with what follows it becomes what it would be on
        its own, whatever was asked before.
        """
        kept: list[Segment] = []
        answers = at = 0
        for segment in self.segments:
            if text.startswith(segment.text, at):
                kept.append(segment)
                at += len(segment.text)
                if segment.generated:
                    answers = len(kept)
                continue
            if segment.generated and (count := n_tokens_within(piece, segment.tokens, text, at)):
                tokens = segment.tokens[:count]
                kept.append(Segment(text_of(piece, tokens), tokens, generated=True))
                answers = len(kept)
            break
        return Transcript(kept[:answers])

    @property
    def n_characters(self) -> int:
        """Length of the text."""
        return sum(len(segment.text) for segment in self.segments)


class TextTokens:
    """Turns whole texts into tokens, with the one BOS that they need."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bos_text = ""
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            self._bos_text = tokenizer.name(tokenizer.bos_id)
        # A SentencePiece vocabulary puts a space before a text. A continuation must not get one, so it is
        # tokenized behind a line break, whose tokens are then taken off again.
        marked = tokenizer.encode("\n")
        self._anchor = marked if marked and tokenizer.piece(marked[0]) == b" " else []

    def with_bos(self, text: str) -> str:
        """`text`, beginning with the BOS that the model wants, once."""
        return text if text.startswith(self._bos_text) else self._bos_text + text

    def extend(self, known: Transcript, text: str) -> Transcript:
        """`known` up to where `text` (as `with_bos` gives it) differs, and the rest tokenized."""
        kept = known.agreed(text, self._tokenizer.piece)
        rest = text[kept.n_characters :]
        if not rest:
            return kept
        tokens = self._encode(rest, first=not kept.segments)
        return Transcript((*kept.segments, Segment(rest, tuple(tokens))))

    def going_on(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text that goes on another one. `special`: read "<|im_end|>" as the token it names."""
        return self._encode(text, first=False, special=special)

    def _encode(self, text: str, *, first: bool, special: bool = True) -> list[int]:
        """Tokens of a piece of a text, `first` where the text begins with it."""
        tokenizer = self._tokenizer
        if first and self._bos_text and tokenizer.bos_id is not None:
            return [tokenizer.bos_id, *tokenizer.encode(text[len(self._bos_text) :], special=special)]
        if self._anchor and not first:
            tokens = tokenizer.encode("\n" + text, special=special)
            if tokens[: len(self._anchor)] == self._anchor:
                return tokens[len(self._anchor) :]
        tokens = tokenizer.encode(text, special=special)
        if self._anchor and not first and text[0] != " " and tokens[0] == self._anchor[0]:
            del tokens[0]  # the line breaks had become one token
        return tokens

    def token_at(self, transcript: Transcript, character: int) -> int:
        """How many of the transcript's tokens lie before its `character`-th character.

        A token across the border counts as after it.
        """
        count = 0
        for segment in transcript.segments:
            if character >= len(segment.text):
                character -= len(segment.text)
                count += len(segment.tokens)
                continue
            if segment.generated:
                return count + n_tokens_within(
                    self._tokenizer.piece, segment.tokens, segment.text[:character]
                )
            part = self._encode(segment.text[:character], first=segment is transcript.segments[0])
            return count + common_prefix(part, list(segment.tokens))
        return count

    def tokens_at(self, transcript: Transcript, characters: Sequence[int]) -> list[int]:
        """`token_at` of each of `characters`, which ascend; each segment is looked at once."""
        found: list[int] = []
        at = count = 0
        for segment in transcript.segments:
            end = at + len(segment.text)
            inside: list[int] = []
            while len(found) + len(inside) < len(characters) and characters[len(found) + len(inside)] < end:
                inside.append(characters[len(found) + len(inside)] - at)
            if inside:
                within = self._tokens_within(segment, inside, first=segment is transcript.segments[0])
                found += [count + tokens for tokens in within]
            at, count = end, count + len(segment.tokens)
        return found + [count] * (len(characters) - len(found))

    def _tokens_within(self, segment: Segment, characters: Sequence[int], *, first: bool) -> list[int]:
        """How many of a segment's tokens lie before each of its `characters`."""
        tokenizer, text = self._tokenizer, segment.text
        if not segment.generated:
            parts = [tokenizer.piece(token) or tokenizer.name(token).encode() for token in segment.tokens]
            whole = text.encode()
            extra = sum(map(len, parts)) - len(whole)  # the space that SentencePiece puts before a text
            if extra in (0, 1) and b"".join(parts)[extra:] == whole:
                ends = [end - extra for end in accumulate(map(len, parts))]
                return [bisect_right(ends, len(text[:character].encode())) for character in characters]
        alone = Transcript([segment] if first else [Segment("", ()), segment])
        return [self.token_at(alone, character) for character in characters]


def message_ends(
    renderer: ChatRenderer,
    messages: Sequence[ChatMessage],
    text: str,
    known: Sequence[int | None] = (),
) -> list[int | None]:
    """Where in `text`, the rendered conversation, each message ends, in characters.

    None where the template renders the beginning of a conversation differently without what follows.

    Args:
        renderer: what rendered it.
        messages: the conversation.
        text: the rendered conversation.
        known: the ends of the first messages, where they were found before.
    """
    ends = list(known)
    for count in range(len(ends) + 1, len(messages) + 1):
        try:
            start = renderer.render(messages[:count], False).text
        except ModelError:  # templates refuse a system prompt alone, or an end that is no question
            ends.append(None)
            continue
        ends.append(len(start) if text.startswith(start) else None)
    return ends


_STRIDE = 256
T = TypeVar("T", "list[int]", "array[int]")


def common_prefix(left: T, right: T) -> int:
    """How many tokens both begin with."""
    length = min(len(left), len(right))
    at = 0
    while at < length and left[at : at + _STRIDE] == right[at : at + _STRIDE]:
        at += _STRIDE
    while at < length and left[at] == right[at]:
        at += 1
    return min(at, length)


NEVER = 2**62
"""A position that no sequence reaches."""


@dataclass(slots=True)
class Slot:
    """One of the runtime's sequences, and what its part of the KV cache holds."""

    number: int
    tokens: list[int] = field(default_factory=list)
    """Exactly those in the cache, by position."""
    conversation: str = ""
    """Whose next turn it is kept for."""
    busy: bool = False
    last_used: int = 0
    """Grows with each use: the smallest is the least recently used."""
    owner: str | int = ""
    """The key of the conversation, named or not, whose tokens it holds; "" for none."""
    holes: Holes = field(default_factory=Holes)
    """What of its conversation was evicted, by index."""
    tainted: int = NEVER
    """Cells from here on were computed in view of tokens that are gone: good for this conversation's going
    on, but not what the same tokens would be anywhere else."""
    unsaved: bool = False
    """Whether it holds more of its conversation than any saved state."""

    def cut(self, length: int) -> None:
        """The sequence was truncated."""
        del self.tokens[length:]
        if length <= self.tainted:
            self.tainted = NEVER

    def clear(self) -> None:
        """The sequence was freed."""
        self.tokens = []
        self.conversation = ""
        self.owner = ""
        self.holes = Holes()
        self.tainted = NEVER
        self.busy = self.unsaved = False
