"""Which tokens of a rendered conversation belong to which message, template and all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgechat.engine.eviction import Role, Span
from edgechat.engine.holes import Holes
from edgechat.engine.rendering import ChatRenderer
from edgechat.engine.sequence import TextTokens, Transcript, message_ends
from edgechat.engine.window import Window
from models.chat import ChatMessage
from models.errors import ModelError

_PROBE = tuple(f"edgechat{i}probe" for i in range(3))


@dataclass(frozen=True, slots=True)
class Layout:
    """The spans of a whole conversation, by index, the header of the coming answer included."""

    spans: tuple[Span, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    """For each span the messages in it: more than one where the template doesn't let them be told apart."""
    ends: tuple[int | None, ...] = ()
    """Where each message ends, in characters of the text as it was rendered."""

    @property
    def messages(self) -> dict[int, tuple[int, ...]]:
        """The messages in each span, by the first of them."""
        return {span.message: group for span, group in zip(self.spans, self.groups, strict=True)}


class Wrapping:
    """What a template writes before and after a message's text. Probed once."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._around: dict[str, tuple[str, str]] | None = None

    def body(self, message: ChatMessage, part: str) -> tuple[int, int]:
        """Where in `part`, a rendered message, its own text begins and ends."""
        if self._around is None:
            self._around = self._probe()
        head, tail = self._around.get(message.role, ("", ""))
        content = message.content.strip()
        start, stop = 0, len(part)
        if tail and part.endswith(tail):
            stop -= len(tail)
        if head and (at := part.find(head, 0, stop)) >= 0:
            start = at + len(head)
        elif content and (at := part.find(content)) >= 0:
            start, stop = at, at + len(content)
        return start, max(start, stop)

    def _probe(self) -> dict[str, tuple[str, str]]:
        roles: tuple[Role, ...] = ("user", "assistant", "user")
        messages = [
            ChatMessage(role, text)  # type: ignore[arg-type]
            for role, text in zip(roles, _PROBE, strict=True)
        ]
        try:
            text = self._renderer.render(messages, False).text
        except ModelError:
            return {}
        first, second, third = message_ends(self._renderer, messages, text)
        if first is None or third is None:
            return {}
        around = {}
        parts = {"assistant": (_PROBE[1], text[first:second]), "user": (_PROBE[2], text[second:third])}
        for role, (content, part) in parts.items():
            head, found, tail = part.partition(content)
            if found and second is not None:
                around[role] = (head, tail)
        return around


def raw_layout(n_tokens: int) -> Layout:
    """Of a text that is no conversation."""
    return Layout((Span(0, "user", 0, n_tokens),), ((0,),))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation in all its forms."""

    messages: tuple[ChatMessage, ...]
    text: str
    """As it was rendered, without a BOS that was added."""
    transcript: Transcript
    """Its tokens, with that BOS."""
    known_ends: tuple[int | None, ...] = ()
    """Where its first messages end, if that was found before."""


def chat_layout(rendered: Rendered, renderer: ChatRenderer, wrapping: Wrapping, texts: TextTokens) -> Layout:
    """Of a conversation.

    Args:
        rendered: the conversation.
        renderer: what rendered it.
        wrapping: of `renderer`.
        texts: what tokenized it.
    """
    messages, text, transcript = rendered.messages, rendered.text, rendered.transcript
    ends = message_ends(renderer, messages, text, rendered.known_ends)
    added = transcript.n_characters - len(text)
    parts: list[_Part] = []
    first = at = 0
    last_end = max((end for end in ends if end is not None), default=0)
    if len(ends) > 1 and _is_further_on(messages, text, ends[0]):
        ends[0] = None
    for index, known in enumerate(ends):
        if known is None and not (index == len(ends) - 1 and at == last_end):
            continue
        end = _end_of_last(wrapping, messages[-1], text, at) if known is None else known
        parts += _parts(wrapping, messages, range(first, index + 1), text[:end], at)
        first, at = index + 1, end
    edges = [edge + added for part in parts for edge in part.edges] + [at + added]
    tokens = texts.tokens_at(transcript, edges)
    spans = [part.span(*tokens[4 * i : 4 * i + 4]) for i, part in enumerate(parts)]
    if spans:
        spans[0] = replace(spans[0], start=0, head=0 if spans[0].pinned else spans[0].start + spans[0].head)
    start, stop = tokens[-1], len(transcript.tokens)
    spans.append(Span(len(messages), "assistant", start, stop, head=stop - start))
    groups = (*(part.messages for part in parts), (len(messages),))
    return Layout(tuple(spans), groups, tuple(ends))


@dataclass(frozen=True, slots=True)
class _Part:
    """One span to be, in characters: start <= body <= tail <= stop."""

    messages: tuple[int, ...]
    role: Role
    edges: tuple[int, int, int, int]
    pinned: bool = False
    opened: bool = False

    def span(self, start: int, body: int, tail: int, stop: int) -> Span:
        """The same in tokens."""
        head = 0 if self.pinned or self.opened else body - start
        return Span(
            self.messages[0],
            self.role,
            start,
            stop,
            head,
            0 if self.pinned else stop - tail,
            pinned=self.pinned,
            opened=self.opened,
        )


def _parts(
    wrapping: Wrapping, messages: Sequence[ChatMessage], group: range, text: str, start: int
) -> list[_Part]:
    """The span of messages that end together, at the end of `text`; two where the system prompt is in it."""
    stop = len(text)
    first = messages[group[0]]
    if first.role == "system" and group[0] == 0:
        if len(group) == 1:
            return [_Part((0,), "system", (start, start, stop, stop), pinned=True)]
        border = _end_of_system(wrapping, messages, text, start, stop)
        if border is not None:
            body = wrapping.body(messages[group[-1]], text[border:stop])
            tail = max(border, min(border + body[1], stop))
            return [
                _Part((0,), "system", (start, start, border, border), pinned=True),
                _Part(tuple(group[1:]), messages[1].role, (border, border, tail, stop), opened=True),
            ]
    head = start + wrapping.body(first, text[start:stop])[0]
    tail = start + wrapping.body(messages[group[-1]], text[start:stop])[1]
    return [_Part(tuple(group), first.role, (start, head, max(head, tail), stop))]


def _is_further_on(messages: Sequence[ChatMessage], text: str, end: int | None) -> bool:
    """Whether a system prompt that seems to end at `end` is in the first question: a template that writes it
    there leaves it out where there is no question yet."""
    system, following = messages[0].content.strip(), messages[1].content.strip()
    if messages[0].role != "system" or not system or end is None:
        return False
    at = text.find(system)
    return at >= end and text.find(following, at + len(system)) >= 0


def _end_of_system(
    wrapping: Wrapping, messages: Sequence[ChatMessage], text: str, start: int, stop: int
) -> int | None:
    """Where the first message's own text begins, if the system prompt is folded into it."""
    system, following = messages[0].content.strip(), messages[1].content.strip()
    # An empty one is found anywhere: it lies behind the first message's header.
    begin = start if system else start + wrapping.body(messages[1], text[start:stop])[0]
    at = text.find(system, begin, stop)
    if at < 0 or not following:
        return None
    at = text.find(following, at + len(system), stop)
    return None if at < 0 else at


def _end_of_last(wrapping: Wrapping, message: ChatMessage, text: str, start: int) -> int:
    """Where the last message ends, if the template does not render a conversation without an answer."""
    content = message.content.strip()
    at = text.rfind(content, start) if content else -1
    if at < 0:
        return len(text)
    stop = at + len(content)
    part = text[at:]
    tail = wrapping.body(message, part)
    return at + max(tail[1], stop - at) if tail[1] < len(part) else stop


def behind_holes(layout: Layout, holes: Holes, window: Window) -> tuple[Span, ...]:
    """The spans by position: what is left of each message after evictions.

    The same as the evictions left, but for messages of which nothing was left in between.
    """
    pinned = window.pinned(layout.spans)
    left = []
    for span in layout.spans:
        start = max(span.start + span.head, pinned)
        if not span.pinned and start < span.stop and holes.within(start, span.stop) == span.stop - start:
            continue
        head = span.head - holes.within(span.start, span.start + span.head)
        lost = holes.within(span.start + span.head, span.stop)
        left.append(
            replace(
                span,
                start=holes.position(span.start),
                stop=holes.position(span.stop),
                head=head,
                opened=span.opened or head < span.head,
                lost=span.lost + lost,
            )
        )
    return tuple(left)


def unseen(layout: Layout, spans: Sequence[Span], pinned: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The messages of which nothing, and those of which not all is left, by the request's count.

    Args:
        layout: of the whole conversation.
        spans: what is left of it.
        pinned: tokens at the start that always stay.
    """
    messages = layout.messages
    left = {span.message: span for span in spans}
    gone: list[int] = []
    cut: list[int] = []
    for whole in layout.spans:
        span = left.get(whole.message)
        if span is None or (span.lost and span.stop - span.tail <= max(span.start + span.head, pinned)):
            gone += messages[whole.message]
        elif span.lost:
            cut += messages[whole.message]
    return tuple(gone), tuple(cut)
