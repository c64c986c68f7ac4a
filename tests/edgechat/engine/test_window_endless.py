"""The sliding window's policy in conversations and answers that don't end."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgechat.engine.eviction import Eviction, Span
from edgechat.engine.holes import Holes
from edgechat.engine.window import Overflow, Window
from tests.edgechat.engine.labelled import Conversation, assert_template


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
