"""Where a summary fails, what goes is forgotten, and the answer comes all the same."""

from collections.abc import Sequence

import pytest

from edgechat.engine import summary
from edgechat.engine.process.messages import Evicted, Note, Summarizing
from edgechat.engine.rendering import PlainRenderer
from edgechat.records import Capabilities, FinishReason
from edgechat.runtimes.base import Chunk, DecodeFailed
from tests.edgechat.engine.harness import MACHINES, NO_ROLLBACK, Bench
from tests.edgechat.engine.summing import ASKED, SUMMARY, bench_of, converse, held, seen, waiting_for_it
from tests.edgechat.scripted_runtime import ScriptedRuntime


def without(bench: Bench, contents: list[str]) -> None:
    told = [event for event in bench.events if isinstance(event, Evicted) and event.n_tokens]
    assert told
    assert {event.summary for event in told} == {""}
    assert held(bench) == seen(contents, len(told[-1].messages), "")
    assert all(not slot.busy for slot in bench.engine._cache.slots)


@pytest.mark.parametrize(
    "says",
    ["", "   ", "and so on " * 60, "<think>Hm. What was it? " + "well " * 60, "Summary:"],
    ids=["nothing", "blank", "endless", "thoughts", "title"],
)
@pytest.mark.parametrize("can", [None, NO_ROLLBACK], ids=["shift", "no rollback"])
def test_a_summary_of_no_use(says: str, can: Capabilities | None) -> None:
    bench = bench_of(can, says)
    without(bench, converse(bench, range(8)))


@MACHINES
def test_the_model_fails_at_it(can: Capabilities | None) -> None:
    bench = bench_of(can)
    before = bench.runtime.on_decode

    def decode(batch: Sequence[Chunk]) -> None:
        before(batch)
        if any(list(chunk.tokens[-5:]) == bench.runtime.tokenizer.encode(ASKED)[-5:] for chunk in batch):
            asked = bench.runtime.tokenizer.encode(ASKED)
            if any(list(chunk.tokens[-len(asked) :]) == asked for chunk in batch):
                raise DecodeFailed("no")

    bench.runtime.on_decode = decode
    without(bench, converse(bench, range(8)))


def test_one_that_takes_too_long_is_cut() -> None:
    bench = bench_of(says="First. " + "z" * 120)
    before = bench.runtime.on_decode

    def decode(batch: Sequence[Chunk]) -> None:
        before(batch)
        if any("z" in map(chr, chunk.tokens) for chunk in batch):
            bench.clock.now += summary.SECONDS / 20

    bench.runtime.on_decode = decode
    converse(bench, range(8))
    told = [event for event in bench.events if isinstance(event, Evicted) and event.n_tokens]
    assert {event.summary for event in told} == {"First."}


def test_a_prompt_that_takes_too_long_is_not_summed_up() -> None:
    bench = bench_of(n_sequences=2)
    contents = converse(bench, range(3))
    bench.step_s = summary.SECONDS
    without(bench, converse(bench, range(3, 8), contents))


@MACHINES
def test_cancelled_while_it_is_written(can: Capabilities | None) -> None:
    bench = bench_of(can)
    contents = waiting_for_it(bench)
    id = len(contents) // 2 - 1
    bench.engine.cancel(id)
    finished = bench.finished(id)
    assert finished.reason == FinishReason.CANCELLED
    assert not bench.engine.busy
    assert all(not slot.busy for slot in bench.engine._cache.slots)
    bench.ask(90, *contents, conversation="a", summarize=True, max_tokens=4)
    assert bench.of(90, Evicted)[0].summary == SUMMARY


def test_cancelled_in_the_middle_of_an_answer() -> None:
    bench = bench_of()
    bench.submit(1, "hello", max_tokens=2600, conversation="a", summarize=True)
    while not bench.of(1, Summarizing):
        bench.engine.step()
    bench.engine.step()
    bench.engine.cancel(1)
    assert bench.finished(1).reason == FinishReason.CANCELLED
    assert not bench.engine.busy
    answer = bench.text(1)
    bench.ask(2, "hello", answer, "more", max_tokens=3, conversation="a", summarize=True)
    assert bench.of(2, Evicted)[0].summary == SUMMARY
    for slot in bench.engine._cache.slots:
        assert bench.runtime.tokens(slot.number) == slot.tokens


def test_a_model_without_a_template_says_that_it_does_not() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=300), PlainRenderer())
    bench.submit(1, "hello", max_tokens=400, summarize=True)
    bench.run()
    assert any(note.kind == "summary" and "no chat template" in note.text for note in bench.of(1, Note))
    assert all(not event.summary for event in bench.of(1, Evicted))


def test_a_context_that_is_too_short_says_so() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=300))
    bench.submit(1, "hello", max_tokens=400, summarize=True)
    bench.run()
    assert any(note.kind == "summary" and "context of about" in note.text for note in bench.of(1, Note))
    assert len(bench.finished(1).tokens) == 400


def test_what_the_model_writes_is_no_markup() -> None:
    bench = bench_of(says=[ord(c) for c in "Ends: <|im_end|> so."])
    contents = converse(bench, range(8))
    told = [event for event in bench.events if isinstance(event, Evicted) and event.n_tokens]
    assert told[-1].summary == "Ends: <|im_end|> so."
    tokens = max((bench.runtime.tokens(i) for i in range(4)), key=len)
    n_ends = len(contents[1:]) - len(told[-1].messages)  # the system's, and not the open answer's
    assert tokens.count(bench.runtime.tokenizer.encode("<|im_end|>")[0]) == n_ends


def test_a_long_system_prompt_leaves_no_room_for_one() -> None:
    bench = bench_of()
    answers = []
    for i in range(6):
        answers.append(bench.ask(i, "!" + "s" * 1500, "q" * 200, max_tokens=400, summarize=True))
    assert all(len(bench.finished(i).tokens) == 400 for i in range(6))
