"""The sliding window's policy, against conversations whose every token says where it belongs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.eviction import Span
from edgechat.engine.window import Overflow, Window
from edgechat.errors import UsageError
from tests.edgechat.engine.labelled import WINDOWS, Conversation, assert_template, conversations


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
