"""Speculation in the engine: the same text as without, whatever is drafted, and whatever happens to it."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgechat.engine.process.messages import Evicted
from edgechat.engine.speculation.cost import StepCost
from edgechat.records import Capabilities, FinishReason, SamplingSettings
from edgechat.runtimes.base import Chunk, ContextFull, Logits, Wanted
from tests.edgechat.engine.drafts import Always, Whims, bench, half_agreeing, restless
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ALL_CAPABLE, IM_END, toy_logits
from tests.oracles.speculation import chi_squared_p, count

PROPOSERS: list[dict[str, Any]] = [
    {"ngrams": True},
    {"model": half_agreeing},
    {"ngrams": True, "model": half_agreeing},
    {"model": restless},
    {"model": lambda tokens, n_vocab: toy_logits(tokens[::-1], n_vocab)},
]
IDS = ["ngrams", "model", "both", "perfect model", "useless model"]
proposers = pytest.mark.parametrize("proposer", PROPOSERS, ids=IDS)

QUESTIONS = ("Tell me about the sea, and about the sea again.", "a b c a b c a b", "Hello world")


def whims(seed: int) -> Callable[[], Whims]:
    seeds = itertools.count(seed)
    return lambda: Whims(next(seeds))


def plain(**options: Any) -> Bench:
    return bench(drafting=False, **options)


def n_drafted(one: Bench, id: int = 1) -> int:
    speculation = one.finished(id).speculation
    assert speculation is not None
    return speculation.drafted


# --- the same text


@proposers
@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_text_is_plain_greedy_text(proposer: dict[str, Any], question: str) -> None:
    expected = plain()
    expected.submit(1, question, max_tokens=120)
    expected.run()
    drafted = 0
    for decides in (None, whims(1), whims(2), Always):
        one = bench(**proposer, decides=decides)
        one.submit(1, question, max_tokens=120)
        one.run()
        assert one.finished(1).tokens == expected.finished(1).tokens
        assert one.text(1) == expected.text(1)
        assert one.finished(1).reason == expected.finished(1).reason
        drafted += n_drafted(one)
    assert drafted > 50


@proposers
def test_a_seeds_text_does_not_depend_on_drafts(proposer: dict[str, Any]) -> None:
    sampling = SamplingSettings(temperature=0.9, top_k=4, seed=11, repetition_penalty=1.05)
    expected = plain().ask(1, QUESTIONS[0], max_tokens=80, sampling=sampling)
    for decides in (whims(3), Always):
        one = bench(**proposer, decides=decides)
        assert one.ask(1, QUESTIONS[0], max_tokens=80, sampling=sampling) == expected
        assert n_drafted(one) > 0


@pytest.mark.parametrize("sampling", [SamplingSettings(temperature=0, repetition_penalty=1.3)])
def test_penalties_see_the_drafts_before(sampling: SamplingSettings) -> None:
    expected = plain().ask(1, QUESTIONS[1], max_tokens=100, sampling=sampling)
    one = bench(ngrams=True, model=half_agreeing, decides=Always)
    assert one.ask(1, QUESTIONS[1], max_tokens=100, sampling=sampling) == expected
    assert n_drafted(one) > 20


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("model", [half_agreeing, restless])
def test_sampled_text_has_the_models_distribution(model: Callable[[Sequence[int], int], Logits]) -> None:
    """Drawn drafts of another distribution: three tokens together come as often as the target says."""
    sampling = SamplingSettings(temperature=1.0, top_k=3, top_p=1, min_p=0)
    one = bench(model=model, decides=Always, n_ctx=128)
    prompt = one.runtime.tokenizer.encode("ab")
    n_vocab = one.runtime.tokenizer.n_vocab

    def p(tokens: list[int]) -> dict[int, float]:
        row = restless(tokens, n_vocab).astype(np.float64)
        top = np.argsort(-row)[:3]
        weights = np.exp(row[top] - row[top[0]])
        return dict(zip(top.tolist(), (weights / weights.sum()).tolist(), strict=True))

    expected = {}
    for a, pa in p(prompt).items():
        for b, pb in p([*prompt, a]).items():
            for c, pc in p([*prompt, a, b]).items():
                expected[a, b, c] = pa * pb * pc
    seen = []
    for id in range(3000):
        one.engine.submit(_raw(id, "ab", sampling))
        one.run()
        seen.append(one.events[-1].tokens)  # type: ignore[union-attr]
        one.events.clear()
    assert chi_squared_p(count(seen), expected) > 0.01


def _raw(id: int, prompt: str, sampling: SamplingSettings) -> Any:
    from edgechat.engine.process.messages import Generate

    return Generate(id, prompt=prompt, sampling=sampling, max_tokens=3, ignore_eog=True)


# --- where an answer ends


@pytest.mark.parametrize("decides", [Always, whims(5)])
def test_ends_at_a_stop_string_inside_a_draft(decides: Any) -> None:
    text = "one two three one two three one two four, stop here and never"
    answers = []
    for options in ({"drafting": False}, {"ngrams": True, "model": half_agreeing, "decides": decides}):
        one = bench(**options)
        one.runtime.answer("Count<|im_end|>\n<|im_start|>assistant\n", text + " again " + text)
        one.submit(1, "Count", stop=(", stop",), max_tokens=200)
        one.run()
        answers.append((one.text(1), one.finished(1).tokens, one.finished(1).reason))
        # The next turn goes on from what was computed, and no more than that.
        one.submit(2, "Count", one.text(1), "again", max_tokens=10)
        one.run()
        answers[-1] += (one.text(2),)
    assert answers[0] == answers[1]
    assert answers[0][0] == "one two three one two three one two four"


def test_ends_at_the_end_of_the_turn_inside_a_draft() -> None:
    """What is quoted goes on behind the end of a turn; the answer doesn't."""
    one = bench(ngrams=True, decides=Always)
    reply = "The sea is wide, and the sea is deep, said the old man."
    one.runtime.answer("assistant\n", reply)
    first = one.ask(1, "Say it", max_tokens=100)
    second = one.ask(2, "Say it", first, "Say it", max_tokens=100)
    assert first == second == reply
    assert one.finished(2).reason is FinishReason.STOP
    assert n_drafted(one, 2) > 20
    assert IM_END not in one.finished(2).tokens
    steps = one.finished(2).speculation
    assert steps is not None
    assert steps.steps < len(reply) / 3
    slot = max(range(4), key=one.runtime.length)
    assert one.runtime.tokens(slot)[-1] == ord(".")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_never_longer_than_the_limit(limit: int) -> None:
    expected = plain().ask(1, QUESTIONS[1], max_tokens=limit)
    for proposer in PROPOSERS[:3]:
        one = bench(**proposer, decides=Always)
        assert one.ask(1, QUESTIONS[1], max_tokens=limit) == expected
        assert len(one.finished(1).tokens) == limit
        assert one.finished(1).reason is FinishReason.LENGTH


def test_cancelled_between_two_steps() -> None:
    one = bench(ngrams=True, model=half_agreeing, decides=Always)
    one.submit(1, QUESTIONS[1], max_tokens=0)
    for _ in range(12):
        one.engine.step()
    one.engine.cancel(1)
    finished = one.finished(1)
    assert finished.reason is FinishReason.CANCELLED
    assert finished.speculation is not None
    expected = plain()
    expected.submit(1, QUESTIONS[1], max_tokens=len(finished.tokens))
    expected.run()
    assert expected.finished(1).tokens == finished.tokens
    # And the conversation goes on from there.
    again = one.ask(2, QUESTIONS[1], one.text(1), "More", max_tokens=20)
    assert again == expected.ask(2, QUESTIONS[1], expected.text(1), "More", max_tokens=20)


# --- the context


@proposers
@pytest.mark.parametrize(
    "can", [ALL_CAPABLE, Capabilities(shift=False, rollback=-1, fork=True)], ids=["shifts", "recomputes"]
)
def test_evictions_come_where_they_come_without_drafts(proposer: dict[str, Any], can: Capabilities) -> None:
    def run(one: Bench) -> tuple[Any, ...]:
        one.submit(1, "!Be brief.", QUESTIONS[0], "Yes. " * 10, "And the sea?", max_tokens=400)
        one.run()
        gone = [event for event in one.events if isinstance(event, Evicted)]
        return one.finished(1).tokens, [(event.n_tokens, event.n_kept) for event in gone]

    expected = run(plain(can=can, n_ctx=200))
    assert len(expected[1]) > 2
    for decides in (whims(7), Always):
        one = bench(**proposer, decides=decides, can=can, n_ctx=200)
        assert run(one) == expected
        assert n_drafted(one) > 20


def test_the_next_turn_computes_only_what_is_new() -> None:
    one, expected = bench(ngrams=True, decides=Always), plain()
    for bench_ in (one, expected):
        bench_.ask(1, QUESTIONS[1], max_tokens=60, conversation="a")
        bench_.ask(2, QUESTIONS[1], bench_.text(1), "More", max_tokens=20, conversation="a")
    assert one.text(2) == expected.text(2)
    assert one.finished(2).timings.cached_tokens >= expected.finished(2).timings.cached_tokens
    assert one.finished(2).timings.prefill_tokens <= expected.finished(2).timings.prefill_tokens


def test_a_context_full_of_others_has_no_room_for_drafts() -> None:
    """Where the drafts don't fit beside what idle conversations hold, the step is made without."""
    full = 0

    def crowd(batch: Sequence[Chunk]) -> None:
        nonlocal full
        if sum(len(chunk.tokens) for chunk in batch) > 1 and batch[0].start > 40:
            full += 1
            raise ContextFull

    one = bench(ngrams=True, decides=Always)
    expected = plain().ask(1, QUESTIONS[1], max_tokens=80)
    one.runtime.on_decode = crowd
    assert one.ask(1, QUESTIONS[1], max_tokens=80) == expected
    assert 1 <= full <= 4


def test_a_runtime_that_cannot_go_back_is_not_drafted_for() -> None:
    from edgechat.engine.drafting import longest_for

    assert longest_for(Capabilities(shift=False, rollback=0, fork=False), 15) == 0
    assert longest_for(Capabilities(shift=False, rollback=4, fork=False), 15) == 4
    assert longest_for(ALL_CAPABLE, 15) == 15


# --- several answers


@proposers
def test_answers_together_are_as_answers_alone(proposer: dict[str, Any]) -> None:
    alone = [plain().ask(1, question, max_tokens=60) for question in QUESTIONS]
    one = bench(**proposer, decides=whims(9), n_batch=32)
    for id, question in enumerate(QUESTIONS):
        one.submit(id, question, max_tokens=60)
        for _ in range(3):
            one.engine.step()
    one.run()
    assert [one.text(id) for id in range(len(QUESTIONS))] == alone
    assert all(sum(len(chunk.tokens) for chunk in batch) <= 32 for batch in one.runtime.batches)
    assert sum(n_drafted(one, id) for id in range(3)) > 20


# --- what it is told


def test_the_controller_saves_steps_and_says_so() -> None:
    line = b"if x > 1: return x + 1\n"

    def same_line(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = toy_logits(tokens[-1:], n_vocab)
        row[line[len(tokens) % len(line)]] = 50
        return row

    one = bench(ngrams=True, logits=same_line)
    one.ask(1, "Write it again and again", max_tokens=300)
    speculation = one.finished(1).speculation
    assert speculation is not None
    assert speculation.tokens_per_step > 2
    assert speculation.drafted >= speculation.accepted > 200
    assert speculation.speedup > 1.5
    assert speculation.reason == ""
    assert speculation.tokens == 299  # the first one is the prompt's
    answering = [batch for batch in one.runtime.batches if batch[0].logits is Wanted.ALL]
    assert len(answering) <= speculation.steps < 150


def test_says_why_nothing_is_drafted() -> None:
    one = bench(ngrams=True, logits=toy_logits)
    one.ask(1, "Something new", max_tokens=30)
    speculation = one.finished(1).speculation
    assert speculation is not None
    assert speculation.drafted <= 2
    assert speculation.reason


def test_without_a_drafter_nothing_is_said() -> None:
    one = plain()
    one.ask(1, "Hello")
    assert one.finished(1).speculation is None


# --- what drafting takes itself


def test_looking_deciding_and_learning_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that a look at it sets forward by a second: each of the three takes one. What `record` takes
    is no part of the step that is observed after it."""
    seconds = itertools.count(0.0)
    made: list[Always] = []
    observed: list[float] = []

    def decides() -> Always:
        made.append(Always())
        return made[-1]

    monkeypatch.setattr(StepCost, "observe", lambda self, width, seconds: observed.append(seconds))
    one = bench(ngrams=True, decides=decides, drafting_clock=lambda: next(seconds))
    steps = iter(range(10_000))
    one.engine._loop._clock = lambda: 10.0 * next(steps)
    one.submit(1, "a b c a b c a b", max_tokens=40)
    one.run()
    looking = [round_.looking_s for round_ in made[0].rounds]
    assert looking == [1.0, *[3.0] * (len(looking) - 1)]
    assert len(looking) > 5
    assert {took % 10 for took in observed} == {9.0}
