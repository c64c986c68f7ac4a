"""Several requests at once: each as if it were alone, none in the way of another for long."""

import itertools
from collections.abc import Sequence

import pytest

from edgechat.errors import ExitCode
from edgechat.records import FinishReason, SamplingSettings
from edgechat.runtimes.base import Chunk, DecodeFailed
from tests.edgechat.engine.harness import Bench, Delta
from tests.edgechat.scripted_runtime import ScriptedRuntime

QUESTIONS = ["hi", "what is the answer", "x" * 150, "tell me more", "é中😀", "Hello world"]


def alone(question: str, **options: object) -> tuple[int, ...]:
    bench = Bench(ScriptedRuntime(n_ctx=4000))
    bench.submit(1, question, max_tokens=20, **options)
    bench.run()
    return bench.finished(1).tokens


@pytest.mark.parametrize("n_sequences", [1, 2, 4, 8])
@pytest.mark.parametrize("sampling", [SamplingSettings(temperature=0), SamplingSettings(seed=5)])
def test_each_answer_is_as_if_alone(n_sequences: int, sampling: SamplingSettings) -> None:
    bench = Bench(ScriptedRuntime(n_ctx=4000, n_batch=32, n_sequences=n_sequences))
    for id, question in enumerate(QUESTIONS):
        bench.submit(id, question, max_tokens=20, sampling=sampling, conversation=str(id % 2))
    bench.run()
    for id, question in enumerate(QUESTIONS):
        assert bench.finished(id).tokens == alone(question, sampling=sampling)


def test_requests_that_come_while_others_run() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=4000, n_batch=32, n_sequences=3))
    for id, question in enumerate(QUESTIONS):
        bench.submit(id, question, max_tokens=20)
        for _ in range(id):
            bench.engine.step()
    bench.run()
    assert [bench.finished(id).tokens for id in range(6)] == [alone(question) for question in QUESTIONS]


def test_answers_share_batches() -> None:
    bench = Bench()
    bench.submit(1, "hi")
    bench.submit(2, "ho")
    bench.run()
    sizes = [[len(chunk.tokens) for chunk in batch] for batch in bench.runtime.batches]
    assert sizes[-15:] == [[1, 1]] * 15
    assert len(sizes) == 16


def test_two_of_one_conversation_at_once() -> None:
    bench = Bench()
    bench.submit(1, "hi", conversation="a")
    bench.submit(2, "hi", conversation="a")
    bench.run()
    assert bench.text(1) == bench.text(2) != ""


def test_a_running_answer_is_not_held_up_more_than_about_twofold() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=4000, n_batch=512), step_s=0.05, token_s=0.005)
    bench.submit(1, "hi", max_tokens=100)
    for _ in range(10):
        bench.engine.step()
    bench.submit(2, "x" * 300, max_tokens=2)
    told: list[float] = []
    while bench.engine.step():
        told.append(bench.clock.now)
        if bench.of(2, Delta):
            break
    gaps = [after - before for before, after in itertools.pairwise(told)]
    assert len(gaps) > 20
    assert max(gaps) <= 2.2 * 0.055
    bench.run()
    assert bench.finished(2).tokens == alone_long()


def alone_long() -> tuple[int, ...]:
    bench = Bench(ScriptedRuntime(n_ctx=4000, n_batch=512))
    bench.submit(1, "x" * 300, max_tokens=2)
    bench.run()
    return bench.finished(1).tokens


def test_cancelling_one_leaves_the_other() -> None:
    bench = Bench()
    bench.submit(1, "hi")
    bench.submit(2, "ho")
    bench.engine.step()
    bench.engine.step()
    bench.engine.cancel(1)
    assert bench.finished(1).reason == FinishReason.CANCELLED
    bench.run()
    assert bench.finished(2).tokens == alone("ho")[:16]


def test_cancelling_one_who_waits() -> None:
    bench = Bench(ScriptedRuntime(n_sequences=1))
    bench.submit(1, "hi")
    bench.submit(2, "ho")
    bench.engine.step()
    bench.engine.cancel(2)
    assert bench.finished(2).reason == FinishReason.CANCELLED
    bench.run()
    assert bench.finished(1).tokens == alone("hi")[:16]


def test_the_queue_is_bounded() -> None:
    bench = Bench(ScriptedRuntime(n_sequences=1), max_waiting=2)
    bench.submit(1, "hi")
    bench.engine.step()
    for id in (2, 3, 4):
        bench.submit(id, "hi")
    assert bench.refused(4).code == ExitCode.RESOURCES
    assert "2 requests are waiting" in bench.refused(4).error
    bench.run()
    assert bench.finished(3)


def test_when_two_answers_fill_the_context_the_younger_waits_and_loses_nothing() -> None:
    runtime = ScriptedRuntime(n_ctx=100, n_batch=32)
    bench = Bench(runtime, step_s=0.01)
    bench.submit(1, "hi", max_tokens=60)
    bench.submit(2, "ho", max_tokens=60)
    bench.run()
    for id, question in ((1, "hi"), (2, "ho")):
        single = Bench(ScriptedRuntime(n_ctx=4000))
        assert bench.text(id) == single.ask(1, question, max_tokens=60)
        assert bench.finished(id).tokens == single.finished(1).tokens
    assert len(bench.finished(2).tokens) == 60


def test_prompts_that_do_not_fit_together_come_one_after_the_other() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=100, n_batch=32))
    bench.submit(1, "x" * 70, max_tokens=5)
    bench.submit(2, "y" * 70, max_tokens=5)
    bench.run()
    assert len(bench.finished(1).tokens) == len(bench.finished(2).tokens) == 5


def test_a_decode_that_fails_ends_its_requests_and_the_engine_goes_on() -> None:
    def fail(batch: Sequence[Chunk]) -> None:
        if len(batch) == 2 and batch[0].start > 12:
            raise DecodeFailed("llama_decode gave -3")

    runtime = ScriptedRuntime(on_decode=fail, n_sequences=2)
    bench = Bench(runtime)
    for id, question in enumerate(["hi", "ho", "later"]):
        bench.submit(id, question)
    bench.run()
    for id in (0, 1):
        assert bench.refused(id).code == ExitCode.ENGINE_CRASHED
        assert "llama_decode gave -3" in bench.refused(id).error
        assert "\n" not in bench.refused(id).error
    assert bench.finished(2).tokens == alone("later")[:16]


def test_a_context_that_is_smaller_than_it_says() -> None:
    class Small(ScriptedRuntime):
        @property
        def n_used(self) -> int:
            return super().n_used + 60

    bench = Bench(Small(n_ctx=100))
    bench.submit(1, "hi", max_tokens=0)
    bench.run()
    assert bench.finished(1).reason == FinishReason.LENGTH
    assert bench.finished(1).n_context == 41
    bench.submit(2, "x" * 60)
    bench.run()
    assert bench.refused(2).code == ExitCode.USAGE
    assert bench.runtime.n_used == 60
