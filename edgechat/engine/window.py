"""The sliding window: which tokens go when a conversation is longer than the context.

What stays, always: the pinned head, that is the template's first tokens, the system prompt and at least
`sinks` first tokens. A model attends to its first tokens whatever they say (attention sinks; Xiao et al.
2023, "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453), so perplexity explodes
without them. What goes: the oldest whole turns, a turn being a user's message and all up to the next one,
so that what is left is again a conversation that the chat template could have written. At least 1/8 of the
budget goes at once: evictions are rare, and keys are rotated to new positions seldom.

The turn that is being answered goes last. Its question stays whole as long as 3/8 of the budget remain for
the answer, whose oldest tokens go first; after that the question loses its oldest tokens behind its first
ones, which tend to say what is wanted.

Plans are pure: spans of messages in, ranges of tokens out. Tokens that wait to be computed are part of the
spans; a range may cover them, and then they are dropped from the waiting ones instead of the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from edgechat.engine.eviction import Cut, Eviction, Range, Span
from edgechat.errors import UsageError


class PromptTooLong(UsageError):
    """The prompt is longer than the whole context, and may not be cut."""


class Overflow(StrEnum):
    """What becomes of a prompt that is longer than the whole window."""

    REFUSE = "refuse"
    WINDOW = "window"
    """Its head and tail are kept, and it is said what was cut."""


@dataclass(slots=True)
class _Plan:
    """An eviction in the making."""

    ranges: list[Range] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    """Messages of which nothing stays."""
    blanked: set[int] = field(default_factory=set)
    """Messages of which header and tail stay, for the template's sake."""
    heir: Span | None = None
    """The message that takes over the pinned header of the first turn, and whose own header goes."""

    @property
    def freed(self) -> int:
        return sum(stop - start for start, stop in self.ranges) + (self.heir.head if self.heir else 0)

    def take(self, start: int, stop: int) -> None:
        if stop > start:
            self.ranges.append((start, stop))


@dataclass(frozen=True, slots=True)
class Window:
    """The policy for one sequence."""

    budget: int
    """Tokens that the sequence may hold."""
    slack: int = 0
    """Tokens kept free for the longest draft."""
    sinks: int = 4
    steps: int = 8
    """A step frees at least 1/steps of the budget; 2 suits runtimes that compute anew all that stays."""
    lead: int | None = None
    """Tokens at the start of a question that stay when it is cut; None: 1/16 of the budget."""
    trained: int = 0
    """Tokens of context that the model was trained on: more is not advised; 0: unknown."""

    def __post_init__(self) -> None:
        """Refuse a window that could hold nothing.

        Raises:
            ValueError: no room beside sinks and slack, or a negative number.
        """
        if (
            min(self.slack, self.sinks, self.steps - 1, self.lead or 0) < 0
            or self.budget <= self.slack + self.sinks
        ):
            raise ValueError(f"not a window: {self!r}")

    @property
    def step(self) -> int:
        """Fewest tokens that an eviction frees, where there are that many to free."""
        return -(-self.budget // self.steps)

    @property
    def _lead(self) -> int:
        return self.budget // 16 if self.lead is None else self.lead

    def pinned(self, spans: Sequence[Span]) -> int:
        """Tokens at the start that stay for good."""
        stop = next((span.start for span in spans if not span.pinned), spans[-1].stop)
        if stop < self.sinks:
            stop = min(self.sinks, spans[-1].stop)
            for span in spans:  # a header is kept whole or not at all
                if span.start < stop < span.start + span.head:
                    stop = span.start + span.head
        return stop

    def make_room(self, spans: Sequence[Span], need: int = 1) -> Eviction | None:
        """What must go before `need` more tokens are computed; None while all fits.

        Args:
            spans: the messages in order, without gaps; what lies before the first is the template's head.
            need: tokens that come, drafts (which the slack is for) not counted.

        Raises:
            UsageError: so much is pinned that no conversation fits beside it.
        """
        excess = spans[-1].stop + need + self.slack - self.budget
        if excess <= 0:
            return None
        plan = self._oldest_turns(spans, max(excess, self.step))
        if plan.freed < excess:
            self._cut_current(spans, plan, max(excess, self.step) - plan.freed)
        if plan.freed < excess:
            raise UsageError(
                f"what always stays (the system prompt) takes {self.pinned(spans):,} of the context's "
                f"{self.budget:,} tokens, which leaves no room for a conversation: shorten it, or start "
                "edgechat with a longer context (--ctx)"
            )
        return self._finish(spans, plan)

    def admit(
        self, spans: Sequence[Span], room: int = 1, overflow: Overflow = Overflow.REFUSE
    ) -> Eviction | None:
        """What must go before a new question is answered; None if all fits.

        Args:
            spans: as for `make_room`, the new question and the header of its answer included.
            room: tokens that must be free for the answer.
            overflow: what to do with a question that is longer than the window.

        Raises:
            PromptTooLong: the question is longer than the window and may not be cut.
            UsageError: so much is pinned that even a cut question does not fit.
        """
        excess = spans[-1].stop + room + self.slack - self.budget
        if excess <= 0:
            return None
        plan = self._oldest_turns(spans, max(excess, self.step))
        if plan.freed < excess and overflow is Overflow.WINDOW:
            self._cut_middle(spans, plan, excess - plan.freed)
        if plan.freed < excess:
            kind = PromptTooLong if overflow is Overflow.REFUSE else UsageError
            raise kind(self._refusal(excess - plan.freed, room))
        return self._finish(spans, plan)

    def _refusal(self, over: int, room: int) -> str:
        fits = self.budget - self.slack - room
        needed = self.budget + over
        longer = (
            f", or start edgechat with a longer context (--ctx {needed})"
            if needed <= (self.trained or needed)
            else ""
        )
        return (
            f"the prompt is {over:,} tokens too long: it has {fits + over:,} tokens, and in the context of "
            f"{self.budget:,} there is room for {fits:,} of them: shorten it{longer}"
        )

    # --- choosing

    def _oldest_turns(self, spans: Sequence[Span], goal: int) -> _Plan:
        """Whole turns from the oldest on until `goal` tokens are free, or only the current turn is left."""
        plan = _Plan()
        pinned = self.pinned(spans)
        turns = _turns(spans)
        for i, turn in enumerate(turns[:-1]):
            if plan.freed >= goal:
                break
            if any(span.pinned for span in turn):
                continue
            first, following = turn[0], turns[i + 1][0]
            header_is_pinned = first.opened or first.start < pinned
            inherits = first.role == following.role == "user" and pinned <= first.stop - first.tail
            if header_is_pinned and not inherits:
                self._blank(plan, turn, pinned)
                continue
            if header_is_pinned or plan.heir is first:
                plan.heir = following
            plan.take(max(first.start, pinned), turn[-1].stop)
            plan.gone.update(span.message for span in turn)
        return plan

    def _blank(self, plan: _Plan, turn: Sequence[Span], pinned: int) -> None:
        """Evict the texts of a turn and keep its headers and tails."""
        before = plan.freed
        for span in turn:
            plan.take(*_body(span, pinned))
        if plan.freed > before:
            plan.blanked.update(span.message for span in turn)

    def _cut_current(self, spans: Sequence[Span], plan: _Plan, goal: int) -> None:
        """Take `goal` tokens from the turn that is being answered, the oldest first, as gently as can be."""
        pinned = self.pinned(spans)
        turn = [span for span in _turns(spans)[-1] if not span.pinned]
        question = [_body(span, pinned) for span in turn if span.role == "user"]
        answer = [_body(span, pinned) for span in turn if span.role != "user"]
        n_answer = sum(stop - start for start, stop in answer)
        recent = self.budget // 4
        tail = _oldest(answer, n_answer - recent)  # of the answer, all but its newest quarter of a window
        body = [(min(start + self._lead, stop), stop) for start, stop in question]
        rest = _without(answer, tail)
        lead = [(start, min(start + self._lead, stop)) for start, stop in question]
        for ranges in (tail, body, rest, lead):
            taken = _oldest(ranges, goal)
            for start, stop in taken:
                plan.take(start, stop)
                goal -= stop - start

    def _cut_middle(self, spans: Sequence[Span], plan: _Plan, goal: int) -> None:
        """Take `goal` tokens out of the middle of the current turn's messages, the longest first."""
        pinned = self.pinned(spans)
        turn = [span for span in _turns(spans)[-1] if not span.pinned]
        for start, stop in sorted((_body(span, pinned) for span in turn), key=lambda body: body[0] - body[1]):
            keep = max(stop - start - goal, min(2, stop - start))
            cut = (start + keep // 4, stop - (keep - keep // 4))
            if goal > 0:
                plan.take(*cut)
                goal -= cut[1] - cut[0]

    # --- carrying out

    def _finish(self, spans: Sequence[Span], plan: _Plan) -> Eviction:
        """The eviction that `plan` amounts to, and the spans after it."""
        heir = plan.heir
        if heir:
            plan.heir = None
            plan.take(heir.start, heir.start + heir.head)
        ranges = _joined(plan.ranges)
        left, cuts = [], []
        for span in spans:
            if span.message in plan.gone:
                continue
            head = _overlap(ranges, span.start, span.start + span.head)
            body = _overlap(ranges, span.start + span.head, span.stop)
            start = span.start + span.head if span is heir else span.start
            left.append(
                replace(
                    span,
                    start=start - _overlap(ranges, 0, start),
                    stop=span.stop - _overlap(ranges, 0, span.stop),
                    head=span.head - head,
                    opened=span.opened or span is heir,
                    lost=span.lost + body,
                )
            )
            if body and span.message not in plan.blanked:
                cuts.append(Cut(span.message, body))
        gone = plan.gone | plan.blanked
        return Eviction(
            ranges=tuple(ranges),
            messages=tuple(span.message for span in spans if span.message in gone),
            cuts=tuple(cuts),
            spans=tuple(left),
        )


def _turns(spans: Sequence[Span]) -> list[list[Span]]:
    """The turns after the pinned head; a user's message opens one."""
    turns: list[list[Span]] = []
    for i, span in enumerate(spans):
        if span.pinned and not turns and span.role == "system" and i < len(spans) - 1:
            continue
        if span.role == "user" or not turns:
            turns.append([])
        turns[-1].append(span)
    return turns


def _body(span: Span, pinned: int) -> Range:
    """A message's own tokens, as far as they are not pinned."""
    stop = span.stop - span.tail
    return min(max(span.start + span.head, pinned), stop), stop


def _oldest(ranges: Sequence[Range], n: int) -> list[Range]:
    """The first `n` tokens of `ranges`."""
    taken = []
    for start, stop in ranges:
        if n <= 0:
            break
        taken.append((start, min(stop, start + n)))
        n -= stop - start
    return [(start, stop) for start, stop in taken if start < stop]


def _without(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """`ranges` without their oldest tokens, which were `taken`."""
    edge = max((stop for _, stop in taken), default=0)
    return [(max(start, edge), stop) for start, stop in ranges if stop > edge]


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """`ranges` in order, those that touch made one."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _overlap(ranges: Sequence[Range], start: int, stop: int) -> int:
    """Tokens of [start, stop) that lie in `ranges`."""
    return sum(max(0, min(stop, b) - max(start, a)) for a, b in ranges)
