"""The sliding window's policy, against conversations whose every token says where it belongs."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgechat.engine.eviction import Eviction, Role, Span
from edgechat.engine.holes import Filling, Holes
from edgechat.engine.window import Overflow, Window
from edgechat.errors import UsageError

Token = tuple[str, int]  # ("head" | "body" | "tail" | "bos", message)


class Conversation:
    """Tokens and spans, kept in step by evictions."""

    def __init__(self, bos: int, system: int | None, folded: bool, head: int = 3, tail: int = 2) -> None:
        self.head, self.tail = head, tail
        self.tokens: list[Token] = [("bos", -1)] * bos
        self.spans: list[Span] = []
        self.roles: dict[int, Role] = {}
        self.n_messages = 0
        self.folded = folded and system is not None
        if system is not None:
            if self.folded:  # the system prompt stands in the user's first message, behind its header
                self.tokens += [("head", -2)] * head + [("system", 0)] * system
                self.spans.append(Span(0, "system", bos, len(self.tokens), pinned=True))
                self.roles[0] = "system"
                self.n_messages = 1
            else:
                self.add("system", system, pinned=True)

    def add(self, role: Role, size: int, *, open_: bool = False, pinned: bool = False) -> None:
        start = len(self.tokens)
        message = self.n_messages
        opened = self.folded and message == 1
        head, tail = (0 if opened else self.head), (0 if open_ else self.tail)
        self.tokens += [("head", message)] * head + [("body", message)] * size + [("tail", message)] * tail
        self.spans.append(
            Span(message, role, start, len(self.tokens), head, tail, pinned=pinned, opened=opened)
        )
        self.roles[message] = role
        self.n_messages += 1

    def grow(self, n: int) -> None:
        """The open answer goes on."""
        last = self.spans[-1]
        self.tokens += [("body", last.message)] * n
        self.spans[-1] = Span(
            last.message,
            last.role,
            last.start,
            last.stop + n,
            last.head,
            0,
            last.pinned,
            last.opened,
            last.lost,
        )

    def close(self) -> None:
        """The open answer ends."""
        last = self.spans[-1]
        self.tokens += [("tail", last.message)] * self.tail
        self.spans[-1] = Span(
            last.message, last.role, last.start, last.stop + self.tail, last.head, self.tail,
            last.pinned, last.opened, last.lost,
        )  # fmt: skip

    def carry_out(self, eviction: Eviction) -> None:
        for start, stop in reversed(eviction.ranges):
            del self.tokens[start:stop]
        self.spans = list(eviction.spans)

    def check(self) -> None:
        """The spans cover the tokens, and the tokens are what the template would write."""
        assert self.spans[-1].stop == len(self.tokens)
        for a, b in pairwise(self.spans):
            assert a.stop == b.start or (a.role == "system" and a.stop < b.start and b.opened)
        for span in self.spans:
            kinds = [kind for kind, _ in self.tokens[span.start : span.stop]]
            owners = {message for _, message in self.tokens[span.start : span.stop]}
            if self.folded and span.role == "system":
                assert kinds.count("system") == len(kinds) - self.head
                continue
            n_body = len(span) - span.head - span.tail
            assert kinds == ["head"] * span.head + ["body"] * n_body + ["tail"] * span.tail
            assert owners <= {span.message}
            assert span.head == (0 if span.opened else self.head)
        roles = [span.role for span in self.spans if span.role != "system"]
        assert roles[0] == "user"
        assert all(a != b for a, b in pairwise(roles)), roles

    def headers(self) -> list[str]:
        """Kinds of tokens with repetitions folded: the grammar that the template writes."""
        folded: list[str] = []
        for kind, _ in self.tokens:
            if not folded or folded[-1] != kind:
                folded.append(kind)
        return folded


def assert_template(conversation: Conversation) -> None:
    """Every header is followed by a body and closed by a tail before the next header comes."""
    if not conversation.tail:
        return
    kinds = [kind for kind in conversation.headers() if kind not in ("bos", "system", "body")]
    assert all(a != b for a, b in pairwise(kinds)), conversation.headers()
    assert kinds[0] == "head"


SIZES = st.integers(1, 400)


@st.composite
def conversations(draw: st.DrawFn, max_size: int = 400) -> Conversation:
    """Any conversation whose last question awaits its answer."""
    conversation = Conversation(
        bos=draw(st.integers(0, 2)),
        system=draw(st.none() | st.integers(1, 60)),
        folded=draw(st.booleans()),
        head=draw(st.integers(1, 6)),
        tail=draw(st.integers(0, 2)),
    )
    for _ in range(draw(st.integers(0, 8))):
        conversation.add("user", draw(st.integers(1, max_size)))
        conversation.add("assistant", draw(st.integers(1, max_size)))
    conversation.add("user", draw(st.integers(1, max_size)))
    conversation.add("assistant", draw(st.integers(0, max_size)), open_=True)
    return conversation


WINDOWS = st.builds(Window, budget=st.integers(400, 1200), slack=st.integers(0, 32))


@given(conversations(), WINDOWS, st.integers(1, 64))
@settings(max_examples=400, deadline=None)
def test_room_is_made(conversation: Conversation, window: Window, need: int) -> None:
    before, spans = list(conversation.tokens), list(conversation.spans)
    pinned = window.pinned(spans)
    eviction = window.make_room(spans, need)
    assert eviction == window.make_room(spans, need)  # deterministic
    if eviction is None:
        assert len(before) + need + window.slack <= window.budget
        return
    excess = len(before) + need + window.slack - window.budget
    assert excess > 0
    conversation.carry_out(eviction)
    assert len(conversation.tokens) + need + window.slack <= window.budget
    assert len(before) - len(conversation.tokens) == eviction.freed
    assert [token for a, b in eviction.kept(len(before)) for token in before[a:b]] == conversation.tokens
    assert conversation.tokens[:pinned] == before[:pinned]  # the pinned head, sinks included, is untouched
    assert pinned >= min(4, len(before))
    conversation.check()
    assert_template(conversation)
    # Whole turns, oldest first; the current turn is touched only when all others are gone.
    gone = set(eviction.messages)
    for kind, message in conversation.tokens[pinned:]:
        assert message not in gone or kind != "body"
    questions = [span.message for span in spans if span.role == "user"]
    turns = [[m for m in range(q, q + 2)] for q in questions]
    flags = [set(turn) <= gone for turn in turns]
    assert flags == sorted(flags, reverse=True)
    assert all(set(turn) <= gone or not set(turn) & gone for turn in turns)
    assert not flags[-1]
    cut = {cut.message for cut in eviction.cuts}
    assert cut <= set(turns[-1])
    if cut:
        assert all(flags[:-1])
        assert eviction.freed >= window.step
    elif not all(flags[:-1]):
        assert eviction.freed >= window.step
    for lost in eviction.cuts:
        kept = conversation.tokens.count(("body", lost.message))
        assert kept + lost.tokens == before.count(("body", lost.message))
    # No more turns than needed: without the youngest of those that went, the goal is missed.
    if any(flags) and not cut:
        last = max(m for turn, flag in zip(turns, flags, strict=True) if flag for m in turn)
        sizes = {span.message: span for span in spans}
        youngest = sum(len(sizes[m]) for m in (last - 1, last))
        header = max(span.head for span in spans)  # the next turn's header may go with it
        assert eviction.freed - youngest - header < max(excess, window.step)


@given(conversations(max_size=2000), WINDOWS, st.integers(1, 100))
@settings(max_examples=300, deadline=None)
def test_prompts_are_admitted_cut_or_refused(conversation: Conversation, window: Window, room: int) -> None:
    before, spans = list(conversation.tokens), list(conversation.spans)
    pinned = window.pinned(spans)
    try:
        eviction = window.admit(spans, room)
    except UsageError:
        eviction = window.admit(spans, room, Overflow.WINDOW)
        assert eviction is not None
        assert eviction.cuts
        assert {cut.message for cut in eviction.cuts} <= {spans[-2].message, spans[-1].message}
        conversation.carry_out(eviction)
        assert len(conversation.tokens) + room + window.slack == window.budget
        for cut in eviction.cuts:  # head and tail of what was cut are there
            span = next(span for span in spans if span.message == cut.message)
            if len(span) - span.head - span.tail > cut.tokens + 8:
                inside = [r for r in eviction.ranges if span.start <= r[0] and r[1] <= span.stop]
                assert inside[-1][0] > span.start + span.head
                assert inside[-1][1] < span.stop - span.tail
    else:
        if eviction is not None:
            conversation.carry_out(eviction)
            assert not eviction.cuts
        assert len(conversation.tokens) + room + window.slack <= window.budget
    assert conversation.tokens[:pinned] == before[:pinned]
    conversation.check()
    assert_template(conversation)


def test_evicts_what_one_would_by_hand() -> None:
    conversation = Conversation(bos=1, system=20, folded=False)
    for _ in range(3):
        conversation.add("user", 45)  # 50 tokens each with header and tail
        conversation.add("assistant", 45)
    conversation.add("user", 10)
    conversation.add("assistant", 0, open_=True)
    # 26 pinned, turns at 26, 126, 226, the question at 326, 15 long, and the answer's header: 344 in all
    eviction = Window(budget=340).make_room(conversation.spans, need=1)
    assert eviction is not None
    assert eviction.ranges == ((26, 126),)
    assert eviction.messages == (1, 2)
    assert eviction.cuts == ()
    assert eviction.kept(344) == ((0, 26), (126, 344))
    assert [span.message for span in eviction.spans] == [0, 3, 4, 5, 6, 7, 8]
    assert eviction.spans[1] == Span(3, "user", 26, 76, 3, 2)


def test_the_first_header_opens_the_next_turn_when_it_is_a_sink() -> None:
    conversation = Conversation(bos=1, system=None, folded=False)  # <s> + a header of 3: just the sinks
    for _ in range(3):
        conversation.add("user", 45)
        conversation.add("assistant", 45)
    conversation.add("user", 5)
    eviction = Window(budget=250).make_room(conversation.spans)
    assert eviction is not None
    # Bodies and tail of the first turn go, and the header of the second: the first one's serves it.
    assert eviction.ranges == ((4, 104),)
    assert eviction.spans[0] == Span(2, "user", 4, 51, head=0, tail=2, opened=True)
    conversation.carry_out(eviction)
    conversation.check()
    assert conversation.headers()[:4] == ["bos", "head", "body", "tail"]


def test_a_folded_system_prompt_stays_in_the_first_message() -> None:
    conversation = Conversation(bos=1, system=30, folded=True)
    for _ in range(3):
        conversation.add("user", 47)
        conversation.add("assistant", 45)
    conversation.add("user", 5)
    eviction = Window(budget=280).make_room(conversation.spans)
    assert eviction is not None
    assert eviction.messages == (1, 2)
    conversation.carry_out(eviction)
    conversation.check()
    assert conversation.headers()[:5] == ["bos", "head", "system", "body", "tail"]


def test_a_greeting_that_holds_the_sinks_is_blanked() -> None:
    conversation = Conversation(bos=0, system=None, folded=False)
    conversation.add("assistant", 200)  # the character speaks first
    for _ in range(3):
        conversation.add("user", 45)
        conversation.add("assistant", 45)
    conversation.add("user", 5)
    eviction = Window(budget=500).make_room(conversation.spans)
    assert eviction is not None
    assert eviction.ranges == ((4, 203),)  # header, one more token (the fourth sink) and the tail stay
    assert eviction.messages == (0,)
    assert eviction.cuts == ()
    again = Window(budget=300).make_room(eviction.spans)
    assert again is not None
    assert again.messages == (1, 2)  # the greeting has nothing more to give


def test_a_pinned_message_keeps_its_turn() -> None:
    conversation = Conversation(bos=1, system=20, folded=False)
    for i in range(4):
        conversation.add("user", 45, pinned=i == 1)
        conversation.add("assistant", 45)
    conversation.add("user", 10)
    eviction = Window(budget=300).make_room(conversation.spans, need=1)
    assert eviction is not None
    assert eviction.ranges == ((26, 126), (226, 326))
    assert eviction.messages == (1, 2, 5, 6)
    conversation.carry_out(eviction)
    conversation.check()


def test_the_question_outlives_its_long_answer() -> None:
    window = Window(budget=400, slack=8)
    conversation = Conversation(bos=1, system=20, folded=False)
    conversation.add("user", 60)
    conversation.add("assistant", 0, open_=True)
    evictions = 0
    for _ in range(5000):
        eviction = window.make_room(conversation.spans)
        if eviction:
            evictions += 1
            assert eviction.freed == window.step == 50
            assert [cut.message for cut in eviction.cuts] == [2]
            conversation.carry_out(eviction)
        conversation.grow(1)
    assert conversation.tokens.count(("body", 1)) == 60
    assert evictions == pytest.approx(5000 / 50, abs=8)
    assert conversation.spans[-1].lost == evictions * 50
    conversation.check()


def test_a_question_that_fills_the_window_yields_to_its_answer() -> None:
    window = Window(budget=400, slack=8)
    conversation = Conversation(bos=1, system=20, folded=False)
    conversation.add("user", 330)
    conversation.add("assistant", 0, open_=True)
    for _ in range(1000):
        eviction = window.make_room(conversation.spans)
        if eviction:
            conversation.carry_out(eviction)
        conversation.grow(1)
        conversation.check()
    answer = conversation.tokens.count(("body", 2))
    question = conversation.tokens.count(("body", 1))
    assert answer >= 100  # a quarter of the window at least
    assert 25 <= question < 330


def test_raw_text_streams_behind_its_sinks() -> None:
    window = Window(budget=256, lead=0)
    tokens = list(range(200))
    spans: tuple[Span, ...] = (Span(0, "user", 0, 200),)
    for i in range(200, 3000):
        eviction = window.make_room(spans)
        if eviction:
            for start, stop in reversed(eviction.ranges):
                del tokens[start:stop]
            spans = eviction.spans
        tokens.append(i)
        spans = (Span(0, "user", 0, spans[0].stop + 1, lost=spans[0].lost),)
    assert tokens[:4] == [0, 1, 2, 3]
    assert tokens[4:] == list(range(tokens[4], 3000))
    assert 256 - 32 <= len(tokens) <= 256


def test_too_much_pinned_is_said() -> None:
    conversation = Conversation(bos=1, system=500, folded=False)
    conversation.add("user", 10)
    with pytest.raises(UsageError, match=r"takes 506 of the context.s 400 tokens"):
        Window(budget=400).make_room(conversation.spans)
    with pytest.raises(UsageError, match="too long"):
        Window(budget=400).admit(conversation.spans, 1, Overflow.WINDOW)


def test_a_refusal_says_the_numbers() -> None:
    conversation = Conversation(bos=1, system=20, folded=False)
    conversation.add("user", 4974)
    conversation.add("assistant", 0, open_=True)
    with pytest.raises(UsageError) as refusal:
        Window(budget=1024, slack=16).admit(conversation.spans, room=128)
    assert str(refusal.value) == (
        "the prompt is 4,128 tokens too long: it has 5,008 tokens, and in the context of 1,024 there is room "
        "for 880 of them: shorten it, or start edgechat with a longer context (--ctx 5152)"
    )


def test_impossible_windows_and_spans_are_refused() -> None:
    for bad in ({"budget": 10, "slack": 8}, {"budget": 100, "steps": 0}, {"budget": 100, "slack": -1}):
        with pytest.raises(ValueError, match="not a window"):
            Window(**bad)
    with pytest.raises(ValueError, match="not the span"):
        Span(0, "user", 5, 4)
    with pytest.raises(ValueError, match="not the span"):
        Span(0, "user", 0, 4, head=3, tail=2)


class EndlessConversation(RuleBasedStateMachine):
    """Any mix of questions and answers; the cache never overflows and never breaks the template."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(budget=512, slack=16)
        self.conversation = Conversation(bos=1, system=30, folded=False)
        self.conversation.add("user", 10)
        self.conversation.add("assistant", 0, open_=True)
        self.pinned = list(self.conversation.tokens[: self.window.pinned(self.conversation.spans)])
        self.holes = Holes()
        self.evicted: list[int] = []

    def _carry_out(self, eviction: Eviction | None) -> None:
        if eviction is None:
            return
        before = list(self.conversation.tokens)
        total = len(before) + self.holes.lost
        new = self.holes.evicted(eviction.ranges)
        self.conversation.carry_out(eviction)
        kept = [before[self.holes.position(i)] for i in range(total) if not _inside(new, i)]
        assert kept == self.conversation.tokens
        self.holes = new
        self.evicted += eviction.messages

    @rule(n=st.integers(1, 300))
    def answer(self, n: int) -> None:
        for _ in range(n):
            self._carry_out(self.window.make_room(self.conversation.spans))
            self.conversation.grow(1)

    @precondition(lambda self: self.conversation.spans[-1].tail == 0)
    @rule(n=st.integers(1, 700))
    def ask(self, n: int) -> None:
        self._carry_out(self.window.make_room(self.conversation.spans, self.conversation.tail))
        self.conversation.close()
        self.conversation.add("user", n)
        self.conversation.add("assistant", 0, open_=True)
        self._carry_out(self.window.admit(self.conversation.spans, 64, Overflow.WINDOW))

    @invariant()
    def holds(self) -> None:
        assert len(self.conversation.tokens) + self.window.slack <= self.window.budget
        assert self.conversation.tokens[: len(self.pinned)] == self.pinned
        assert self.evicted == sorted(set(self.evicted))
        self.conversation.check()


def _inside(holes: Holes, index: int) -> bool:
    return any(start <= index < stop for start, stop in holes.ranges)


TestEndlessConversation = EndlessConversation.TestCase
TestEndlessConversation.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_a_hundred_thousand_tokens() -> None:
    window = Window(budget=1024, slack=16)
    conversation = Conversation(bos=1, system=40, folded=False)
    conversation.add("user", 12)
    conversation.add("assistant", 0, open_=True)
    total, evictions, freed = len(conversation.tokens), 0, 0
    seed = 1
    while total < 100_000:
        seed = (seed * 1103515245 + 12345) % 2**31
        for _ in range(20 + seed % 180):
            eviction = window.make_room(conversation.spans)
            if eviction:
                evictions, freed = evictions + 1, freed + eviction.freed
                conversation.carry_out(eviction)
            conversation.grow(1)
            total += 1
        eviction = window.make_room(conversation.spans, conversation.tail)
        if eviction:
            evictions, freed = evictions + 1, freed + eviction.freed
            conversation.carry_out(eviction)
        conversation.close()
        conversation.add("user", 5 + seed % 60)
        conversation.add("assistant", 0, open_=True)
        total += 10 + 5 + seed % 60
        eviction = window.admit(conversation.spans, 64)
        if eviction:
            evictions, freed = evictions + 1, freed + eviction.freed
            conversation.carry_out(eviction)
        assert len(conversation.tokens) + window.slack <= window.budget
        conversation.check()
        assert_template(conversation)
    assert freed / evictions >= window.step
    assert evictions <= 100_000 / window.step
    assert len(conversation.spans) < 60  # the bookkeeping does not grow


# --- holes


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12), st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_holes_follow_the_tokens(evictions: list[tuple[int, int]], total: int) -> None:
    kept = list(range(total))
    holes = Holes()
    for start, n in evictions:
        if start + n > len(kept):
            continue
        holes = holes.evicted([(start, start + n)])
        del kept[start : start + n]
        assert holes.lost == total - len(kept)
        for position, index in enumerate(kept):
            assert holes.index(position) == index
            assert holes.position(index) == position
        for start_, stop in holes.ranges:
            assert not set(range(start_, stop)) & set(kept)
    for length in range(0, total, 7):
        short = holes.truncated(length)
        assert short.position(length) == sum(index < length for index in kept)


def test_bad_holes_are_refused() -> None:
    for bad in (((3, 3),), ((0, 4), (4, 6)), ((5, 7), (1, 2)), ((-1, 2),)):
        with pytest.raises(ValueError, match="not holes"):
            Holes(bad)


# --- a filling, which stands in for what went


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 59), st.integers(1, 20)), max_size=6),
    st.integers(0, 59),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=400, deadline=None)
def test_positions_and_indexes_beside_a_filling(
    n: int, cuts: list[tuple[int, int]], at: int, n_filling: int, n_later: int
) -> None:
    """Against a list of labels, of which the same is taken and to which the same is added."""
    at = min(at, n - 1)
    labels: list[int] = list(range(n))
    holes = Holes(((at, min(n, at + 3)),))
    labels[at : min(n, at + 3)] = []
    for count, size in enumerate((n_filling, n_later)):
        tokens = tuple(range(-1, -1 - size, -1))
        labels[at : at + holes.n_filled] = tokens
        holes = Holes(holes.ranges, Filling(at, tokens, "x"))
        for start, length in cuts[count::2]:
            first = at + size + start % max(1, len(labels) - at - size)
            stop = min(first + length, len(labels))
            if first < stop:
                holes = holes.evicted([(first, stop)])
                del labels[first:stop]
        assert holes.applied(list(range(n))) == labels
        for position, label in enumerate(labels):
            if label >= 0:
                assert holes.position(label) == position
                assert holes.index(position) == label
        assert len(labels) == n - holes.lost + holes.n_filled


@pytest.mark.parametrize(
    ("ranges", "filling"),
    [
        ((), Filling(0, (1,))),
        (((2, 4),), Filling(3, (1,))),
        (((2, 4),), Filling(-1, (1,))),
        (((2, 4),), Filling(2, ())),
    ],
)
def test_a_filling_needs_a_hole(ranges: tuple[tuple[int, int], ...], filling: Filling) -> None:
    with pytest.raises(ValueError, match="not a filling"):
        Holes(ranges, filling)
