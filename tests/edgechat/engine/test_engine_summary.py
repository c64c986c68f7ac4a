"""Summaries of what leaves the context: what the model sees, computes and tells."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgechat.engine import summary
from edgechat.engine.process.messages import Delta, Evicted, Note, Summarizing
from edgechat.engine.states import open_states
from edgechat.records import Capabilities
from edgechat.runtimes.base import Chunk
from tests.edgechat.engine.harness import MACHINES, message
from tests.edgechat.engine.summing import (
    ASKED,
    N_CTX,
    SUMMARY,
    bench_of,
    converse,
    evictions,
    first_eviction,
    held,
    question,
    seen,
    text_of,
    waiting_for_it,
)


@MACHINES
def test_a_summary_takes_the_place_of_what_goes(can: Capabilities | None) -> None:
    bench = bench_of(can)
    contents = converse(bench, range(16))
    tokenizer = bench.runtime.tokenizer
    told = [event for event in bench.events if isinstance(event, Evicted) and event.n_tokens]
    assert len(told) >= 2
    assert {event.summary for event in told} == {SUMMARY}
    gone = told[-1].messages
    assert gone == tuple(range(1, len(gone) + 1))
    assert len(gone) % 2 == 0
    # The cache is what the template would have written of a conversation that began with the summary.
    text = seen(contents, len(gone))
    assert held(bench) == text
    head = message("system", "Be kind.") + "<|im_start|>user\n" + summary.BEFORE + SUMMARY + summary.AFTER
    assert told[-1].n_pinned == len(tokenizer.encode(head))
    assert bench.finished(15).n_pinned == told[-1].n_pinned
    assert len(tokenizer.encode(head[head.index(summary.BEFORE) :])) <= N_CTX // 8
    # And so the next answer is what a fresh engine says that is given just that.
    fresh = bench_of()
    left = contents[1 + len(gone) :]
    left[0] = summary.BEFORE + SUMMARY + summary.AFTER + left[0]
    assert bench.ask(90, *contents, "z", conversation="a", summarize=True) == fresh.ask(
        1, contents[0], *left, "z"
    )


@MACHINES
def test_the_order_of_what_is_told(can: Capabilities | None) -> None:
    bench = bench_of(can)
    converse(bench, range(8))
    events = bench.of(first_eviction(bench))
    kinds = [type(event) for event in events if not isinstance(event, Note)]
    assert kinds[:2] == [Summarizing, Evicted]
    assert kinds.index(Evicted) < kinds.index(Delta)
    (note,) = [event for event in events if isinstance(event, Note)]
    assert "a summary that it wrote" in note.text
    later = bench.of(7, Evicted)[0]
    assert (later.n_tokens, later.summary) in {(0, SUMMARY), (later.n_tokens, SUMMARY)}


def test_only_the_question_for_it_and_what_stays_are_computed() -> None:
    bench = bench_of()
    contents = converse(bench, range(3))
    turn = 3
    while not any(isinstance(event, Evicted) for event in bench.events):
        before = len(bench.runtime.batches)
        contents = converse(bench, [turn], contents)
        turn += 1
    batches = bench.runtime.batches[before:]
    tokenizer = bench.runtime.tokenizer
    asked = tokenizer.encode(ASKED)  # what the template writes before it stood there already
    of_it = [chunk for batch in batches for chunk in batch if chunk.sequence != batches[-1][0].sequence]
    assert [token for chunk in of_it for token in chunk.tokens] == asked + tokenizer.encode(SUMMARY)
    (event,) = evictions(bench, turn - 1)
    rest = sum(len(chunk.tokens) for batch in batches for chunk in batch)
    rest -= sum(len(chunk.tokens) for chunk in of_it)
    stays = event.n_kept - len(tokenizer.encode(message("system", "Be kind.") + "<|im_start|>user\n"))
    assert rest == stays + len(tokenizer.encode(contents[-1]))


@MACHINES
def test_the_next_turn_computes_only_what_is_new(can: Capabilities | None) -> None:
    bench = bench_of(can)
    converse(bench, range(14))
    new = len(bench.runtime.tokenizer.encode("<|im_end|>\n" + message("user", question(0)))) + 22
    for turn in range(1, 14):
        if not evictions(bench, turn):
            assert bench.finished(turn).timings.prefill_tokens <= new, turn
            for event in bench.of(turn, Evicted):
                assert event.summary == SUMMARY


def test_a_later_summary_is_written_in_view_of_the_earlier_one() -> None:
    prompts: list[str] = []
    bench = bench_of()

    def decode(batch: Sequence[Chunk]) -> None:
        for chunk in batch:
            tokens = [*bench.runtime.tokens(chunk.sequence), *chunk.tokens]
            text = "".join(map(bench.runtime.tokenizer.name, tokens))
            if text.endswith(ASKED):
                prompts.append(text)

    bench.runtime.on_decode = decode
    contents = converse(bench, range(12))
    assert len(prompts) >= 2
    assert summary.BEFORE not in prompts[0]
    for prompt in prompts[1:]:
        assert prompt.count(summary.BEFORE) == prompt.count(summary.BEFORE + SUMMARY + summary.AFTER) == 1
    for prompt in prompts:  # each is a conversation that the template could have written
        assert prompt.startswith(message("system", "Be kind.") + "<|im_start|>user\n")
        assert prompt.endswith("y<|im_end|>\n<|im_start|>user\n" + ASKED)
        assert prompt.count("<|im_start|>") == prompt.count("<|im_end|>") + 1
    assert contents[1] in prompts[0]


def test_an_answer_longer_than_the_context_is_summed_up_too() -> None:
    bench = bench_of()
    bench.submit(1, "!Be kind.", "hello", max_tokens=2600, conversation="a", summarize=True)
    bench.run()
    finished = bench.finished(1)
    assert len(finished.tokens) == 2600
    told = bench.of(1, Evicted)
    assert len(told) >= 2
    assert all(event.cut == (2,) and event.summary == SUMMARY for event in told)
    head = message("system", "Be kind.") + message("user", summary.BEFORE + SUMMARY + summary.AFTER + "hello")
    tokens = bench.runtime.tokenizer.encode(head + "<|im_start|>assistant\n")
    cache = next(bench.runtime.tokens(i) for i in range(4) if bench.runtime.length(i))
    assert cache[: len(tokens)] == tokens
    n_seen = len(cache) - len(tokens)
    assert cache[len(tokens) :] == list(finished.tokens[-1 - n_seen : -1])
    assert bench.text(1) == b"".join(map(bench.runtime.tokenizer.piece, finished.tokens)).decode(
        "utf-8", "replace"
    )
    assert finished.n_context <= N_CTX


def test_after_a_restart_it_goes_on_with_the_summary(tmp_path: Path) -> None:
    def states() -> Any:
        return open_states(str(tmp_path), 10_000_000, 10_000_000, "toy", 272)

    before = bench_of(states=states())
    contents = converse(before, range(8))
    before.engine.save_all(10)
    n_gone = len([event for event in before.events if isinstance(event, Evicted)][-1].messages)
    after = bench_of(states=states())
    after.submit(1, *contents, "m", conversation="a", max_tokens=8, summarize=True)
    after.run()
    assert after.of(1, Evicted)[0].summary == SUMMARY
    assert after.finished(1).timings.prefill_tokens < 50
    assert held(after).startswith(seen(contents, n_gone))
    assert after.text(1) == before.ask(90, *contents, "m", conversation="a", max_tokens=8, summarize=True)


def test_without_its_state_it_goes_on_with_the_summary_that_the_client_kept() -> None:
    before = bench_of()
    contents = converse(before, range(8))
    n_gone = len([event for event in before.events if isinstance(event, Evicted)][-1].messages)
    after = bench_of()
    options: dict[str, Any] = {"conversation": "a", "summarize": True, "max_tokens": 8}
    after.ask(1, *contents, "m", summary=SUMMARY, summarized=n_gone + 1, **options)
    assert after.of(1, Summarizing) == []
    (told,) = after.of(1, Evicted)
    assert told.summary == SUMMARY
    assert told.messages == tuple(range(1, n_gone + 1))
    assert held(after).startswith(seen(contents, n_gone))
    assert after.text(1) == before.ask(90, *contents, "m", **options)
    # Where all fits, it is not needed.
    after.ask(2, "hello", "hi", "m", summary=SUMMARY, summarized=2, summarize=True)
    assert after.of(2, Evicted) == []


@pytest.mark.parametrize("summarized", [0, 2, 3, 99])
def test_a_summary_of_messages_that_are_not_there_is_left_out(summarized: int) -> None:
    before = bench_of()
    contents = converse(before, range(8))
    after = bench_of()
    after.ask(1, *contents, "m", conversation="b", summarize=True, summary="Lies.", summarized=summarized)
    assert after.finished(1)
    if summarized != 3:
        assert "Lies" not in held(after)


def test_regenerating_sees_the_same() -> None:
    bench = bench_of()
    contents = converse(bench, range(8))
    n_gone = len([event for event in bench.events if isinstance(event, Evicted)][-1].messages)
    again = bench.ask(90, *contents[:-1], conversation="a", summarize=True, max_tokens=60)
    assert again == contents[-1]
    assert bench.of(90, Evicted)[0].summary == SUMMARY
    assert bench.finished(90).timings.prefill_tokens <= 40
    assert held(bench) == seen(contents, n_gone)


def test_an_edit_before_what_went_forgets_the_summary() -> None:
    bench = bench_of()
    contents = converse(bench, range(8))
    bench.ask(90, contents[0], "another", contents[2], "m", conversation="a", summarize=True)
    assert bench.of(90, Evicted) == []
    assert summary.BEFORE not in held(bench).split("another")[-1]


def test_conversations_without_a_name() -> None:
    bench = bench_of()
    contents = converse(bench, range(10), conversation="")
    n_gone = len([event for event in bench.events if isinstance(event, Evicted)][-1].messages)
    assert seen(contents, n_gone) in {text_of(bench, i) for i in range(4)}


def test_one_sequence_is_enough_between_turns() -> None:
    bench = bench_of(n_sequences=1)
    contents = converse(bench, range(8))
    n_gone = len([event for event in bench.events if isinstance(event, Evicted)][-1].messages)
    assert held(bench) == seen(contents, n_gone)
    # In the middle of an answer there is none free.
    bench.submit(90, "hello", max_tokens=2600, summarize=True)
    bench.run()
    assert all(not event.summary for event in bench.of(90, Evicted))
    assert len(bench.finished(90).tokens) == 2600


def test_others_are_answered_meanwhile() -> None:
    bench = bench_of()
    waiting_for_it(bench)
    alone = bench_of()
    bench.submit(80, "other", max_tokens=30, conversation="b")
    bench.run()
    assert bench.text(80) == alone.ask(1, "other", max_tokens=30)
