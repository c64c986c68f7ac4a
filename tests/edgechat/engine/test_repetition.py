"""Answers that go round in circles: which are ended, and when."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.process.messages import Note
from edgechat.engine.repetition import ENDED, LONG_LOOP, LOOK_EACH, ROUNDS, is_caught
from edgechat.records import FinishReason
from edgechat.runtimes.base import Logits
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime


def says(answer: Sequence[int]) -> ScriptedRuntime:
    """A model with room for far more than is said, whose every answer is `answer`, over and over."""
    held: list[int] = []

    def logits(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = np.zeros(n_vocab, dtype=np.float32)
        row[answer[len(held) % len(answer)]] = 50
        held.append(0)
        return row

    return ScriptedRuntime(logits=logits, n_ctx=100_000)


def naive(recent: Sequence[int]) -> bool:
    """Whether some distance, an eighth of it all at most, maps all of it on itself."""
    return any(recent[step:] == recent[:-step] for step in range(1, len(recent) // ROUNDS + 1))


@given(st.integers(1, 200), st.integers(0, 3), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_as_a_slow_search_finds(period: int, changed: int, random: object) -> None:
    phrase = [random.randrange(3) for _ in range(period)]  # type: ignore[attr-defined]
    answer = (phrase * (2 * LONG_LOOP // period + 1))[: LONG_LOOP + 64]
    for _ in range(changed):
        answer[random.randrange(len(answer))] = 9  # type: ignore[attr-defined]
    assert is_caught(answer, 0) is naive(answer[-LONG_LOOP:])


def test_it_looks_now_and_then() -> None:
    answer = [7] * (LONG_LOOP + LOOK_EACH)
    assert not is_caught(answer[: LONG_LOOP - 1], 0)
    assert is_caught(answer[:LONG_LOOP], LONG_LOOP - 1)
    assert not is_caught(answer[: LONG_LOOP + 1], LONG_LOOP)
    assert is_caught(answer, LONG_LOOP + LOOK_EACH - 5)


@pytest.mark.parametrize("period", [1, 7, 128])
def test_a_loop_is_ended_long_before_the_window_is_full(period: int) -> None:
    bench = Bench(says(range(97, 97 + period)))
    bench.submit(1, "hello", max_tokens=0)
    bench.run()
    assert bench.finished(1).reason == FinishReason.LENGTH
    assert LONG_LOOP <= len(bench.finished(1).tokens) <= LONG_LOOP + LOOK_EACH
    (note,) = bench.of(1, Note)
    assert note.text == ENDED


def test_who_sets_an_end_has_it() -> None:
    bench = Bench(says(range(97, 104)))
    bench.submit(1, "hello", max_tokens=3000)
    bench.submit(2, "hello", max_tokens=3000, ignore_eog=True)
    bench.run()
    assert [len(bench.finished(one).tokens) for one in (1, 2)] == [3000, 3000]


def test_what_is_almost_the_same_goes_on() -> None:
    """A list of numbered lines, say: each round differs in one token."""
    numbered = [token for number in range(60) for token in (*range(97, 107), 110 + number)]
    bench = Bench(says([*numbered, *numbered[::-1]]))
    bench.submit(1, "hello", max_tokens=0)
    for _ in range(5000):
        if not bench.engine.step():
            break
    assert all(note.text != ENDED for note in bench.of(1, Note))
