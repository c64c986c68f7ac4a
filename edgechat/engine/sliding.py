"""Keeping each answer inside the context: when what goes, and what the client hears of it.

Every sequence may hold as many tokens as the whole context has, whatever else is being answered: an answer
is the same text alone and beside others. If several don't fit together, the youngest waits (scheduler).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgechat.engine.holes import NONE, Holes, Range
from edgechat.engine.process.messages import Evicted, Generate
from edgechat.engine.rendering import ChatRenderer
from edgechat.engine.sequence import TextTokens, Transcript
from edgechat.engine.spans import Layout, Rendered, Wrapping, behind_holes, chat_layout, raw_layout, unseen
from edgechat.engine.window import Eviction, Overflow, Span, Window
from edgechat.errors import UsageError

RECOMPUTED_STEPS = 2
"""Where all that stays is computed anew, half of the budget goes at once."""


LOOP_TOKENS = 256
"""What repeats itself for so long, and for half of the window, never stops."""


@dataclass(slots=True)
class Visible:
    """What the model sees of one request's conversation."""

    request: Generate
    text: str
    """The conversation as it was rendered, without a BOS that was added; "" for a raw prompt."""
    transcript: Transcript
    tokens: list[int]
    """Those of the prompt and the answer that are not evicted, by position."""
    holes: Holes = NONE
    """Those that are, by index."""
    known_ends: tuple[int | None, ...] = ()
    layout: Layout | None = None
    """Found when it is first needed: most conversations never fill the context."""
    spans: tuple[Span, ...] = ()

    def carry_out(self, eviction: Eviction) -> None:
        """Forget what goes."""
        self.holes = self.holes.evicted(eviction.ranges)
        self.spans = eviction.spans
        remove(self.tokens, eviction.ranges)


class Sliding:
    """The window of all the engine's sequences."""

    def __init__(
        self,
        budget: int,
        renderer: ChatRenderer,
        texts: TextTokens,
        *,
        recompute: bool,
        slack: int = 0,
        trained: int = 0,
    ) -> None:
        """Keep sequences within `budget` tokens.

        Args:
            budget: tokens that a sequence may hold.
            renderer: what renders conversations.
            texts: what tokenizes them.
            recompute: what stays is computed anew after an eviction.
            slack: tokens kept free for drafts.
            trained: tokens of context that the model was trained on.
        """
        self.budget = budget
        self.recompute = recompute
        self._renderer = renderer
        self._texts = texts
        self._wrapping = Wrapping(renderer)
        slack = max(0, min(slack, budget - 8))
        steps = RECOMPUTED_STEPS if recompute else 8
        self._chat = Window(budget, slack=slack, steps=steps, trained=trained)
        self._raw = Window(budget, slack=slack, steps=steps, lead=0, trained=trained)

    def holds(self, n_tokens: int) -> bool:
        """Whether a sequence of so many tokens, drafts aside, is within the budget."""
        return n_tokens + self._chat.slack <= self.budget

    def room(self, n_tokens: int) -> int:
        """Tokens by which a sequence of `n_tokens` may grow before something must go."""
        return max(0, self.budget - self._chat.slack - n_tokens)

    def admit(self, visible: Visible) -> Eviction | None:
        """Make a new request fit, with room for the first token of an answer. Carried out already.

        Raises:
            UsageError: its last turn alone is longer than the context, and must not be cut.
        """
        if visible.holes.ranges:
            self._lay_out(visible)
        if self.holds(len(visible.tokens) + 1):
            return None
        self._lay_out(visible)
        overflow = Overflow(visible.request.overflow)
        room = 1
        if overflow is Overflow.WINDOW:  # a cut prompt's first eviction shouldn't come at once
            room = max(1, min(visible.request.max_tokens or self.budget, self.budget // 4))
        eviction = self._window(visible).admit(visible.spans, room, overflow)
        if eviction is not None:
            visible.carry_out(eviction)
        return eviction

    def make_room(self, visible: Visible) -> Eviction | None:
        """Make an answer that grew fit again. Carried out already.

        Raises:
            UsageError: so much is pinned that nothing can go; or the answer repeats itself word for word, and
                would go on with that for ever.
        """
        if self.holds(len(visible.tokens)):
            return None
        recent = visible.tokens[-max(LOOP_TOKENS, self.budget // 2) :]
        if (
            len(recent) >= LOOP_TOKENS
            and not visible.request.ignore_eog
            and _period(recent) <= len(recent) // 8
        ):
            raise UsageError("The answer repeats itself, word for word: it was ended.")
        self._lay_out(visible)
        eviction = self._window(visible).make_room(visible.spans, need=0)
        if eviction is not None:
            visible.carry_out(eviction)
        return eviction

    def event(self, visible: Visible, n_tokens: int) -> Evicted:
        """What the client hears after `n_tokens` went."""
        layout = self._lay_out(visible)
        pinned = self._window(visible).pinned(visible.spans)
        gone, cut = unseen(layout, visible.spans, pinned)
        return Evicted(
            visible.request.id,
            messages=gone,
            cut=cut,
            n_tokens=n_tokens,
            n_lost=visible.holes.lost,
            n_pinned=pinned,
            n_kept=len(visible.tokens),
        )

    def _window(self, visible: Visible) -> Window:
        return self._chat if visible.request.messages else self._raw

    def _lay_out(self, visible: Visible) -> Layout:
        """Bring the spans up to date."""
        if visible.layout is None:
            visible.layout = self._layout(visible)
            visible.spans = behind_holes(visible.layout, visible.holes, self._window(visible))
        last = visible.spans[-1]
        visible.spans = (*visible.spans[:-1], replace(last, stop=len(visible.tokens)))
        return visible.layout

    def _layout(self, visible: Visible) -> Layout:
        if not visible.request.messages:
            return raw_layout(len(visible.transcript.tokens))
        rendered = Rendered(visible.request.messages, visible.text, visible.transcript, visible.known_ends)
        return chat_layout(rendered, self._renderer, self._wrapping, self._texts)


def _period(tokens: Sequence[int]) -> int:
    """The shortest distance at which all of `tokens` repeat themselves; their number where they don't."""
    borders = [
        0
    ]  # of each beginning, the longest proper end that is its beginning too (Knuth, Morris, Pratt)
    for token in tokens[1:]:
        border = borders[-1]
        while border and tokens[border] != token:
            border = borders[border - 1]
        borders.append(border + (tokens[border] == token))
    return len(tokens) - borders[-1]


def remove(tokens: list[int], ranges: Sequence[Range]) -> None:
    """Delete `ranges`, which ascend, from `tokens`."""
    for start, stop in reversed(ranges):
        del tokens[start:stop]


def sentence(event: Evicted, n_messages: int) -> str:
    """What the person hears when something goes."""
    parts = []
    if event.messages:
        n = len(event.messages)
        parts.append(f"{n} message{'s' * (n > 1)}")
    if n_messages in event.cut:
        parts.append("the beginning of this answer")
    elif event.cut:
        parts.append("the middle of the prompt" if n_messages else "a part of the text")
    what = " and ".join(parts) or "a part of the conversation"
    return f"The context is full: the model no longer sees {what} ({event.n_lost:,} tokens)."
