"""The n-gram index against a scan of the whole text."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgechat.engine.speculation.ngram import BORDER, LONGEST, PLACES, NGramIndex
from edgechat.engine.speculation.proposal import Source
from edgechat.engine.speculation.quoting import NGramProposer, confidence
from tests.oracles.speculation import continuation

TEXTS = st.lists(st.sampled_from([0, 1, 2, 3, 2_000_000, BORDER]), max_size=120)


def brute_length(tokens: list[int], at: int) -> int:
    """How many tokens before `at` equal those at the end, within the last text."""
    length = 0
    while (
        length < min(at, LONGEST)
        and tokens[-1 - length] != BORDER
        and tokens[at - 1 - length] == tokens[-1 - length]
    ):
        length += 1
    return length


@given(TEXTS, st.sampled_from([(2, 3, 4, 8), (1,), (2, 12), (3, 5)]), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_finds_what_a_scan_finds(tokens: list[int], orders: tuple[int, ...], n: int) -> None:
    index = NGramIndex(orders, capacity=4096)
    for end in range(len(tokens)):
        index.append(tokens[end])
        match = index.find(n)
        found, order = continuation(tokens[: end + 1], orders, n)
        if not found:
            # A longest match at the very border gives no draft, a shorter order may.
            assert match is None or order
            continue
        assert match is not None
        assert list(match.tokens) == found
        assert match.length >= order
        assert index.find_after(index.tail(LONGEST), n) == match
        assert index.following(match.position, n) == match.tokens


def going_on(tokens: list[int], place: int, n: int) -> list[int]:
    """What stands from `place` on; the text goes on with itself."""
    longer = list(tokens)
    for i in range(n):
        longer.append(longer[place + i])
    return longer[place : place + n]


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_length_and_agreement(tokens: list[int]) -> None:
    index = NGramIndex((2,), capacity=4096)
    index.extend(tokens)
    match = index.find(6)
    if match is None:
        return
    context = tokens[-2:]
    places = [i for i in range(2, len(tokens)) if tokens[i - 2 : i] == context]
    after = [going_on(tokens, place, 6) for place in places[-2:]]
    assert match.tokens == tuple(after[-1])
    assert match.length == brute_length(tokens, places[-1])
    if len(places) == 1:
        assert match.agreed is None
    else:
        assert match.agreed == next((i for i in range(6) if after[0][i] != after[1][i]), 6)


class EditedText(RuleBasedStateMachine):
    """Any mix of growth and truncation, in a small memory: what is remembered is found."""

    ORDERS = (2, 4)
    CAPACITY = 40

    def __init__(self) -> None:
        super().__init__()
        self.text: list[int] = []
        self.index = NGramIndex(self.ORDERS, capacity=self.CAPACITY)
        self.remembered = 0  # tokens at the end that the index must know

    @rule(tokens=st.lists(st.sampled_from([0, 1, 2, BORDER]), min_size=1, max_size=30))
    def grow(self, tokens: list[int]) -> None:
        self.text += tokens
        self.index.extend(tokens)
        self.remembered = min(self.remembered + len(tokens), self.CAPACITY // 2)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        length = int(len(self.text) * share)
        self.remembered = max(0, self.remembered - (len(self.text) - length))
        self.text = self.text[:length]
        self.index.truncate(length)

    @invariant()
    def same_as_scan(self) -> None:
        assert len(self.index) == len(self.text)
        match = self.index.find(5)
        recent = self.text[len(self.text) - self.remembered :]
        found, order = continuation(recent, self.ORDERS, 5)
        if found:  # what the remembered part tells is found: this or a longer match further back
            assert match is not None
            assert list(match.tokens) == found or match.length > order
        if match is not None:  # and nothing is ever invented
            everywhere = [
                i
                for i in range(2, len(self.text))
                if self.text[i - 2 : i] == self.text[-2:] and self.text[i] == match.tokens[0]
            ]
            assert everywhere


TestEditedText = EditedText.TestCase
TestEditedText.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(TEXTS, st.data())
@settings(max_examples=150, deadline=None)
def test_truncation_undoes_growth(tokens: list[int], data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(tokens)))
    edited, fresh = NGramIndex(capacity=4096), NGramIndex(capacity=4096)
    edited.extend(tokens)
    edited.truncate(length)
    fresh.extend(tokens[:length])
    for token in (0, 1, 2, 0, 1):
        assert edited.find(4) == fresh.find(4)
        edited.append(token)
        fresh.append(token)


def test_repetition_is_drafted_as_going_on() -> None:
    index = NGramIndex()
    index.extend([5, 6, 7, 5, 6, 7, 5, 6])
    match = index.find(7)
    assert match is not None
    assert match.tokens == (7, 5, 6, 7, 5, 6, 7)
    assert match.length == 5


def test_the_most_recent_occurrence_counts() -> None:
    index = NGramIndex((2,), capacity=64)
    index.extend([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    match = index.find(1)
    assert match is not None
    assert match.tokens == (4,)
    assert match.agreed == 0


def test_earlier_conversations_help_out() -> None:
    past = NGramIndex()
    past.extend([10, 11, 12, 13, 14, 15, 16, BORDER])
    proposer = NGramProposer(past=past)
    proposer.extend([1, 12, 13])
    drafts = proposer.propose(8)
    assert [draft.token for draft in drafts] == [14, 15, 16]
    assert {draft.source for draft in drafts} == {Source.PAST}
    assert [draft.confidence for draft in drafts] == sorted(draft.confidence for draft in drafts)
    proposer.extend([9, 1, 12, 13])  # its own, longer match comes first
    drafts = proposer.propose(2)
    assert [draft.token for draft in drafts] == [9, 1]
    assert {draft.source for draft in drafts} == {Source.NGRAM}
    assert NGramProposer().propose(4) == []


def test_a_quote_goes_on_behind_a_changed_word() -> None:
    proposer = NGramProposer()
    proposer.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 1, 2, 3, 4])
    assert [draft.token for draft in proposer.propose(3)] == [5, 6, 7]
    proposer.extend([60])  # instead of 5
    drafts = proposer.propose(3)
    assert [draft.token for draft in drafts] == [6, 7, 8]
    assert {draft.source for draft in drafts} == {Source.RESUME}
    proposer.extend([6, 7, 8])
    assert {draft.source for draft in proposer.propose(3)} == {Source.NGRAM}
    proposer.extend([61, 62, 63, 64, 65])
    assert proposer.propose(1) != []
    proposer.extend([66])  # it has been left for good
    assert proposer.propose(3) == []
    proposer.truncate(14)
    assert [draft.token for draft in proposer.propose(3)] == [5, 6, 7]


@pytest.mark.parametrize(
    ("instead", "goes_on"),
    [
        ([60, 6], [7, 8, 9]),  # one for one
        ([60, 61, 6], [7, 8, 9]),  # longer than what it replaces
        ([60, 7], [8, 9, 10]),  # shorter
        ([6], [7, 8, 9]),  # left out
        ([60, 61, 62, 6], [7, 8, 9]),
    ],
)
def test_a_quote_is_found_again_behind_a_change_of_another_length(
    instead: list[int], goes_on: list[int]
) -> None:
    """The source is 1 .. 20; 5 was replaced by `instead`, of which the last token is the source's again."""
    proposer = NGramProposer()
    proposer.extend(range(1, 21))
    proposer.extend([50, 51, 1, 2, 3, 4])
    assert [draft.token for draft in proposer.propose(3)] == [5, 6, 7]
    proposer.extend(instead)
    drafts = proposer.propose(3)
    assert [draft.token for draft in drafts] == goes_on
    assert {draft.source for draft in drafts} == {Source.RESUME}
    assert drafts[0].confidence > NGramProposer.RESUMED[0]


def test_drafts_are_sure_as_far_as_the_last_two_times_agree() -> None:
    """Records of one form: the keys 1 2 3 4 5 6 come again, the values don't."""
    proposer = NGramProposer()
    proposer.extend([9, 1, 2, 3, 4, 5, 6, 70, 9, 1, 2, 3, 4, 5, 6, 80, 9, 1, 2, 3])
    drafts = proposer.propose(5)
    assert [draft.token for draft in drafts] == [4, 5, 6, 80, 9]
    assert [draft.after for draft in drafts] == [3, 4, 5, 6, 80]
    assert [draft.confidence for draft in drafts] == [
        confidence(4, True),
        confidence(5, True),
        confidence(6, True),
        confidence(7, False),
        confidence(8, None),
    ]


def test_a_resumed_quote_grows_surer_with_each_word() -> None:
    proposer = NGramProposer()
    proposer.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 1, 2, 3, 4])
    assert {draft.source for draft in proposer.propose(4)} == {Source.NGRAM}
    proposer.extend([60])  # instead of 5
    assert [draft.confidence for draft in proposer.propose(4)] == list(NGramProposer.RESUMED)
    assert [draft.after for draft in proposer.propose(3)] == [60, 6, 7]
    proposer.extend([6])
    assert [draft.confidence for draft in proposer.propose(2)] == list(NGramProposer.RESUMED[1:3])


def test_confidence_grows_with_the_match() -> None:
    lengths = [confidence(length, None) for length in range(LONGEST + 8)]
    assert lengths == sorted(lengths)
    assert all(confidence(n, False) < confidence(n, None) < confidence(n, True) < 1 for n in range(2, 40))


def test_memory_is_bounded_and_old_text_forgotten() -> None:
    index = NGramIndex(capacity=2048)
    rng = np.random.default_rng(0)
    for _ in range(12_000):
        index.append(int(rng.integers(0, 1000)))
        assert len(index._tokens) <= 2048 + LONGEST + 8
    assert index.n_bytes <= 4 * (4 * PLACES + 5 * (2048 + LONGEST + 8))
    assert len(index) == 12_000


def test_a_long_conversation_takes_two_megabytes() -> None:
    tracemalloc.start()
    try:
        index = NGramIndex()
        rng = np.random.default_rng(0)
        for token in rng.integers(0, 150_000, 100_000).tolist():
            index.append(token)
        gc.collect()
        taken, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= 2.5e6, taken
    assert abs(taken - index.n_bytes) < 1e6
    assert most <= 12e6  # the list that the tokens came in


def test_contexts_that_share_a_place_are_told_apart() -> None:
    index = NGramIndex((1,), capacity=4096)
    one, other = 5, 5 + PLACES
    index.extend([one, 10, other, 20, one])
    match = index.find(1)
    assert match is not None
    assert (match.tokens, match.agreed) == ((10,), None)
    index.extend([10, other])
    match = index.find(1)
    assert match is not None
    assert match.tokens == (20,)
    index.truncate(5)
    assert index.find(1) is not None
    assert index.find(1).tokens == (10,)  # type: ignore[union-attr]


def test_bad_sizes_are_refused() -> None:
    for orders, capacity in (((), 64), ((0,), 64), ((8,), 16)):
        with pytest.raises(ValueError, match="no index"):
            NGramIndex(orders, capacity)


@given(
    st.lists(st.lists(st.integers(0, 3) | st.just(BORDER), max_size=70), max_size=8),
    st.sampled_from([64, 65_536]),
)
def test_a_long_text_at_once_is_as_one_token_after_the_other(texts: list[list[int]], capacity: int) -> None:
    at_once, one_by_one = NGramIndex(capacity=capacity), NGramIndex(capacity=capacity)
    for number, text in enumerate(texts):
        words = [token for token in text if token != BORDER] if number % 2 else text
        at_once.extend(words)
        for token in words:
            one_by_one.append(token)
        assert state(at_once) == state(one_by_one)


def state(index: NGramIndex) -> tuple[object, ...]:
    """All that an index knows."""
    chains = [(chain.last, chain.previous) for chain in index._chains]
    return len(index), index._start, index._tokens, index._run, index._context, chains
