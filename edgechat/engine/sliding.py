"""Keeping each answer inside the context: when what goes, and what the client hears of it.

Every sequence may hold as many tokens as the whole context has, whatever else is being answered: an answer
is the same text alone and beside others. If several don't fit together, the youngest waits (scheduler).
"""

import contextlib
from dataclasses import replace
from functools import cached_property

from edgechat.engine.eviction import Eviction, Span
from edgechat.engine.holes import Filling, Holes
from edgechat.engine.process.messages import Evicted
from edgechat.engine.rendering import ChatRenderer
from edgechat.engine.repetition import ENDED, never_stops
from edgechat.engine.sequence import TextTokens
from edgechat.engine.spans import Layout, Rendered, Wrapping, behind_holes, chat_layout, raw_layout, unseen
from edgechat.engine.summary import Summaries
from edgechat.engine.visible import Visible
from edgechat.engine.window import Overflow, Window
from edgechat.errors import UsageError

RECOMPUTED_STEPS = 2
"""Where all that stays is computed anew, half of the budget goes at once."""
SUMMARY_STEPS = 2
"""So it is where a summary takes the place of what goes: it is written seldom, and of much."""


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
        self._slack = max(0, min(slack, budget - 8))
        steps = RECOMPUTED_STEPS if recompute else 8
        self._chat = Window(budget, slack=self._slack, steps=steps, trained=trained)
        self._raw = Window(budget, slack=self._slack, steps=steps, lead=0, trained=trained)

    @cached_property
    def summaries(self) -> Summaries:
        """What can be summed up; found out when it is first asked for."""
        return Summaries(self._renderer, self._texts, self.budget)

    def sums_up(self, visible: Visible) -> bool:
        """Whether what goes of this conversation is to be summed up, and can be."""
        request = visible.request
        return request.summarize and bool(request.messages) and self.summaries.possible

    def room(self, visible: Visible) -> int:
        """Tokens by which a sequence may grow before something must go."""
        return max(0, self.budget - self._kept_free(visible) - len(visible.tokens))

    def _kept_free(self, visible: Visible) -> int:
        """Tokens that must be free: for drafts, and to sum up what goes."""
        return self._slack + (self.summaries.reserve if self.sums_up(visible) else 0)

    # --- what must go

    def admit(self, visible: Visible) -> Eviction | None:
        """What must go before a new request fits, with room for the first token of an answer.

        Raises:
            UsageError: its last turn alone is longer than the context, and must not be cut.
        """
        if visible.holes.ranges:
            self._lay_out(visible)
        if len(visible.tokens) + 1 + self._kept_free(visible) <= self.budget:
            return None
        self._lay_out(visible)
        overflow = Overflow(visible.request.overflow)
        room = 1
        if overflow is Overflow.WINDOW:  # a cut prompt's first eviction shouldn't come at once
            room = max(1, min(visible.request.max_tokens or self.budget, self.budget // 4))
        if self.sums_up(visible):
            with contextlib.suppress(UsageError):
                more = self._growth(visible)
                return self._window(visible).admit(visible.spans, 1 + more, Overflow.REFUSE)
            if len(visible.tokens) + 1 + self._slack <= self.budget:
                return None
        return self._window(visible, summing=False).admit(visible.spans, room, overflow)

    def make_room(self, visible: Visible) -> Eviction | None:
        """What must go before an answer that grew fits again.

        Raises:
            UsageError: so much is pinned that nothing can go; or the answer repeats itself word for word, and
                would go on with that for ever.
        """
        if len(visible.tokens) + self._kept_free(visible) <= self.budget:
            return None
        if not visible.request.ignore_eog and never_stops(visible.tokens, self.budget):
            raise UsageError(ENDED)
        self._lay_out(visible)
        if self.sums_up(visible):
            with contextlib.suppress(UsageError):
                return self._window(visible).make_room(visible.spans, need=self._growth(visible))
            if len(visible.tokens) + self._slack <= self.budget:
                return None
        return self._window(visible, summing=False).make_room(visible.spans, need=0)

    # --- what takes its place

    def adopt(self, visible: Visible) -> None:
        """Where all of a conversation doesn't fit: go on with the summary that the request brings of its
        first messages, as if they had just been evicted."""
        request = visible.request
        if (
            not request.summary
            or visible.holes.ranges
            or not self.sums_up(visible)
            or len(visible.tokens) + 1 + self._kept_free(visible) <= self.budget
        ):
            return
        layout = self._lay_out(visible)
        first = next((span for span in layout.spans if span.message == request.summarized), None)
        if visible.anchor is None or first is None or first.role != "user":
            return
        filling = self.summaries.filling(request.summary, visible.anchor)
        stop = first.start + first.head
        if filling is None or stop <= visible.anchor:
            return
        visible.holes = Holes(((visible.anchor, stop),), filling)
        visible.tokens[:] = visible.holes.applied(visible.transcript.tokens)
        visible.layout = None
        self._lay_out(visible)

    def question(self, visible: Visible, eviction: Eviction) -> list[int] | None:
        """The tokens that the model goes on from to sum up what an eviction, not carried out yet, takes.

        Returns:
            None where that can't be summed up: the person's own message is cut, the template doesn't let the
            messages be told apart, or there is no room.
        """
        anchor = visible.anchor
        if anchor is None or not self.sums_up(visible):
            return None
        pinned = anchor + visible.holes.n_filled
        stop = self._end_of_what_goes(visible, eviction)
        if stop is None or stop <= pinned or eviction.ranges[0][0] < pinned:
            return None
        tokens = [*visible.tokens[:stop], *self.summaries.question]
        left = len(visible.tokens) - eviction.freed + self._growth(visible)
        fits = max(len(tokens) + self.summaries.n_tokens, left + 1 + self._slack) <= self.budget
        return tokens if fits else None

    def filling(self, visible: Visible, summary: str) -> Filling | None:
        """What takes the place of what goes; None where that is nothing."""
        return None if visible.anchor is None else self.summaries.filling(summary, visible.anchor)

    def _end_of_what_goes(self, visible: Visible, eviction: Eviction) -> int | None:
        """The position of the end of the text that goes; None where it doesn't end in an answer."""
        stop = eviction.ranges[-1][1]
        groups = {} if visible.layout is None else visible.layout.messages
        last: Span | None = None
        for span in visible.spans:
            if last is not None and stop <= span.start + span.head:  # that message's header alone goes
                break
            last = span
        if last is None or last.role != "assistant" or len(groups.get(last.message, ())) != 1:
            return None
        return min(stop, last.stop - last.tail)

    def _growth(self, visible: Visible) -> int:
        """Tokens by which the pinned part may grow with a new summary."""
        return max(0, self.summaries.limit - visible.holes.n_filled)

    # --- what is told

    def event(self, visible: Visible, n_tokens: int) -> Evicted:
        """What the client hears after `n_tokens` went."""
        layout = self._lay_out(visible)
        pinned = self._window(visible).pinned(visible.spans)
        gone, cut = unseen(layout, visible.spans, pinned)
        filling = visible.holes.filling
        n_lost = visible.holes.lost
        if visible.n_cut:
            n_lost = _three_figures(n_lost + visible.n_cut)
        return Evicted(
            visible.request.id,
            messages=gone,
            cut=cut,
            n_tokens=n_tokens,
            n_lost=n_lost,
            about=visible.n_cut > 0,
            n_pinned=pinned,
            n_kept=len(visible.tokens),
            summary="" if filling is None else filling.text,
        )

    def pinned(self, visible: Visible) -> int:
        """Tokens at the start that always stay."""
        if visible.layout is not None:
            self._lay_out(visible)
            return self._window(visible).pinned(visible.spans)
        if not visible.request.messages:
            return self._raw.pinned(raw_layout(len(visible.tokens)).spans)
        # The first messages tell it, and the others needn't be looked for.
        first = Rendered(visible.request.messages[:2], visible.text, visible.transcript)
        return self._chat.pinned(chat_layout(first, self._renderer, self._wrapping, self._texts).spans)

    # --- the spans

    def _window(self, visible: Visible, *, summing: bool = True) -> Window:
        """The policy for a conversation. `summing`: with room for a summary, where there is to be one."""
        if not visible.request.messages:
            return self._raw
        sinks = self._sinks(visible, visible.holes.n_filled)
        if sinks is None:
            return self._chat
        slack = self._kept_free(visible)
        if summing and self.sums_up(visible) and slack + sinks < self.budget:
            return replace(self._chat, sinks=sinks, slack=slack, steps=SUMMARY_STEPS)
        return replace(self._chat, sinks=sinks)

    def _sinks(self, visible: Visible, n_filled: int) -> int | None:
        """Tokens at the start that stay, all up to the end of a summary; None where there will be none.

        Up to there a conversation is the same before and after evictions, so that a summary keeps its place.
        """
        anchor = visible.anchor
        if anchor is None or not (visible.holes.filling or self.sums_up(visible)):
            return None
        return anchor + n_filled if anchor + n_filled + self._slack < self.budget else None

    def _lay_out(self, visible: Visible) -> Layout:
        """Bring the spans up to date."""
        if visible.layout is None:
            visible.layout = self._layout(visible)
            visible.anchor = _anchor(visible.layout, visible.holes)
            window = self._window(visible)
            sinks = self._sinks(visible, 0)
            if sinks is not None:  # by index, which a filling has none of
                window = replace(window, sinks=sinks)
            visible.spans = behind_holes(visible.layout, visible.holes, window)
        last = visible.spans[-1]
        visible.spans = (*visible.spans[:-1], replace(last, stop=len(visible.tokens)))
        return visible.layout

    def _layout(self, visible: Visible) -> Layout:
        if not visible.request.messages:
            return raw_layout(len(visible.transcript.tokens))
        rendered = Rendered(visible.request.messages, visible.text, visible.transcript, visible.known_ends)
        return chat_layout(rendered, self._renderer, self._wrapping, self._texts)


def _anchor(layout: Layout, holes: Holes) -> int | None:
    """Where a summary lies or may be put; None where there is no place for one."""
    if holes.filling is not None:
        return holes.filling.at
    first = next((span for span in layout.spans if not span.pinned), None)
    if first is None or first.role != "user":
        return None
    anchor = first.start + first.head
    return None if holes.ranges and holes.ranges[0][0] < anchor else anchor


def _three_figures(number: int) -> int:
    """An estimate without figures that it doesn't know."""
    return round(number, 3 - len(str(number)))


def sentence(event: Evicted, n_messages: int) -> str:
    """What the person hears when something goes."""
    parts = []
    if event.messages:
        n = len(event.messages)
        parts.append(f"{n} message{'s' * (n > 1)}")
    if not n_messages:  # a text that is no conversation goes on in its answer
        parts.append("a part of the text")
    elif n_messages in event.cut:
        parts.append("the beginning of this answer")
    elif event.cut:
        parts.append("the middle of your message")
    what = " and ".join(parts) or "a part of the conversation"
    about = "about " if event.about else ""
    instead = ", but a summary that it wrote" if event.summary else ""
    return f"The context is full: the model no longer sees {what} ({about}{event.n_lost:,} tokens){instead}."
