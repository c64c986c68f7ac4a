"""Conversations that come back: from the cache, from memory, and after a restart from disk."""

from pathlib import Path

import pytest

from edgechat.engine.process.messages import Evicted
from edgechat.engine.states import StateFiles, StateStore, open_states
from edgechat.records import Capabilities
from edgechat.runtimes.base import ContextFull
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime

LONG = "hello " * 60  # 360 tokens
NEW = "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def bench_of(states: StateStore | None, n_ctx: int = 1000, **options: object) -> Bench:
    return Bench(ScriptedRuntime(n_ctx=n_ctx, **options), states=states)  # type: ignore[arg-type]


def on_disk(folder: Path, n_ctx: int = 1000, memory: int = 100_000) -> StateStore:
    return open_states(str(folder), memory, 10_000_000, f"toy {n_ctx}", 272)


def n_new(bench: Bench) -> int:
    return len(bench.runtime.tokenizer.encode(NEW)) + 1  # the last answer's last token was not computed


def test_a_conversation_that_lost_its_slot_comes_back_from_memory() -> None:
    bench = bench_of(StateStore(1_000_000), n_sequences=1)
    answer = bench.ask(1, LONG, conversation="a")
    bench.ask(2, "other", conversation="b")
    bench.ask(3, LONG, answer, "more", conversation="a")
    assert bench.finished(3).timings.prefill_tokens == n_new(bench)
    fresh = bench_of(None)
    fresh.ask(1, LONG, conversation="a")
    assert bench.text(3) == fresh.ask(2, LONG, answer, "more", conversation="a")


def test_without_a_store_it_is_computed_again() -> None:
    bench = bench_of(None, n_sequences=1)
    answer = bench.ask(1, LONG, conversation="a")
    bench.ask(2, "other", conversation="b")
    bench.ask(3, LONG, answer, "more", conversation="a")
    assert bench.finished(3).timings.prefill_tokens > 300


def test_an_unnamed_conversation_comes_back_too() -> None:
    bench = bench_of(StateStore(1_000_000), n_sequences=1)
    answer = bench.ask(1, LONG)
    bench.ask(2, "other")
    bench.ask(3, LONG, answer, "more")
    assert bench.finished(3).timings.prefill_tokens == n_new(bench)


def test_after_a_restart_only_the_new_question_is_computed(tmp_path: Path) -> None:
    before = bench_of(on_disk(tmp_path))
    answer = before.ask(1, LONG, conversation="a")
    assert before.engine.unsaved
    before.engine.save_one()
    assert not before.engine.unsaved
    before.engine.save_all(10)
    after = bench_of(on_disk(tmp_path))
    expected, encoded = n_new(after), after.runtime.tokenizer.n_encoded
    after.ask(1, LONG, answer, "more", conversation="a")
    assert after.finished(1).timings.prefill_tokens == expected
    assert after.runtime.tokenizer.n_encoded - encoded == len(NEW)  # the history was not tokenized again
    assert after.text(1) == before.ask(2, LONG, answer, "more", conversation="a")
    cold = bench_of(None)
    cold.ask(1, LONG, answer, "more")
    ratio = cold.finished(1).timings.prefill_tokens / after.finished(1).timings.prefill_tokens
    assert ratio >= 8


def test_the_end_saves_what_is_not_saved(tmp_path: Path) -> None:
    before = bench_of(on_disk(tmp_path), n_sequences=2)
    answers = {name: before.ask(id, name + LONG, conversation=name) for id, name in enumerate("abc")}
    before.engine.save_all(10)  # one of them was given up and is in memory only
    for name, answer in answers.items():
        after = bench_of(on_disk(tmp_path))
        after.ask(1, name + LONG, answer, "more", conversation=name)
        assert after.finished(1).timings.prefill_tokens == n_new(after)


def test_short_and_unnamed_conversations_are_not_saved(tmp_path: Path) -> None:
    bench = bench_of(on_disk(tmp_path))
    bench.ask(1, "hi", conversation="a")
    bench.ask(2, LONG)
    assert not bench.engine.unsaved
    bench.engine.save_all(10)
    assert list(tmp_path.iterdir()) == []


def test_what_was_evicted_stays_out_after_a_restart(tmp_path: Path) -> None:
    before = bench_of(on_disk(tmp_path, 400), 400)
    contents = ["!Be kind."]
    for id in range(8):
        contents += ["x" * 60, before.ask(id, *contents, "x" * 60, conversation="a", max_tokens=30)]
    (*_, event) = before.of(7, Evicted)
    before.engine.save_all(10)
    held = before.runtime.tokens(0)
    after = bench_of(on_disk(tmp_path, 400), 400)
    after.ask(1, *contents, "m", conversation="a", max_tokens=2)
    (again, *_) = after.of(1, Evicted)
    assert (again.messages, again.n_lost) == (event.messages, event.n_lost)
    assert again.n_tokens == 0
    assert after.runtime.tokens(0)[: len(held)] == held
    assert after.finished(1).timings.prefill_tokens < 20
    # Another conversation gets nothing of what has seen the evicted turns.
    after.ask(2, contents[0], *contents[1 + len(event.messages) :], "m", conversation="b", max_tokens=2)
    assert after.finished(2).timings.cached_tokens < 40


def test_another_context_is_another_state(tmp_path: Path) -> None:
    before = bench_of(on_disk(tmp_path))
    answer = before.ask(1, LONG, conversation="a")
    before.engine.save_all(10)
    after = bench_of(on_disk(tmp_path, 2000), 2000)
    after.ask(1, LONG, answer, "more", conversation="a")
    assert after.finished(1).timings.cached_tokens == 0


def test_a_blob_that_the_runtime_refuses_is_ignored_and_removed(tmp_path: Path) -> None:
    class Picky(ScriptedRuntime):
        def import_state(self, sequence: int, state: bytes) -> None:
            raise ValueError("a saved state of another model")

    before = bench_of(on_disk(tmp_path))
    answer = before.ask(1, LONG, conversation="a")
    before.engine.save_all(10)
    after = Bench(Picky(n_ctx=1000), states=on_disk(tmp_path))
    assert after.ask(1, LONG, answer, "more", conversation="a") == before.ask(
        2, LONG, answer, "more", conversation="a"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_blob_of_another_length_is_ignored(tmp_path: Path) -> None:
    class Short(ScriptedRuntime):
        def import_state(self, sequence: int, state: bytes) -> None:
            super().import_state(sequence, state[:-4])

    before = bench_of(on_disk(tmp_path))
    answer = before.ask(1, LONG, conversation="a")
    before.engine.save_all(10)
    after = Bench(Short(n_ctx=1000), states=on_disk(tmp_path))
    after.ask(1, LONG, answer, "more", conversation="a")
    assert after.finished(1).timings.cached_tokens == 0
    assert after.runtime.tokens(0)[:10] == before.runtime.tokens(0)[:10]


def test_no_room_for_a_state(tmp_path: Path) -> None:
    class Full(ScriptedRuntime):
        def import_state(self, sequence: int, state: bytes) -> None:
            self.free(sequence)
            if self.n_used:
                raise ContextFull
            super().import_state(sequence, state)

    before = bench_of(on_disk(tmp_path))
    answer = before.ask(1, LONG, conversation="a")
    before.engine.save_all(10)
    after = Bench(Full(n_ctx=1000), states=on_disk(tmp_path))
    after.ask(1, "other", conversation="b")
    after.ask(2, LONG, answer, "more", conversation="a")
    assert after.finished(2).timings.prefill_tokens == n_new(after)  # the other made room
    after = Bench(Full(n_ctx=1000), states=on_disk(tmp_path))
    after.submit(1, "other", conversation="b")
    after.engine.step()
    after.ask(2, LONG, answer, "more", conversation="a")
    assert after.finished(2).timings.cached_tokens < 10


@pytest.mark.parametrize(
    "can",
    [Capabilities(shift=False, rollback=0, fork=False), Capabilities(shift=False, rollback=-1, fork=True)],
)
def test_runtimes_that_can_do_less(tmp_path: Path, can: Capabilities) -> None:
    before = bench_of(on_disk(tmp_path), can=can)
    answer = before.ask(1, LONG, conversation="a")
    before.engine.save_all(10)
    after = bench_of(on_disk(tmp_path), can=can)
    after.ask(1, LONG, answer, "more", conversation="a")
    assert after.finished(1).timings.prefill_tokens == n_new(after)


def test_a_deleted_conversation_leaves_nothing(tmp_path: Path) -> None:
    states = on_disk(tmp_path)
    bench = bench_of(states)
    bench.ask(1, LONG, conversation="a")
    bench.engine.save_one()
    assert isinstance(states.files, StateFiles)
    states.files.wait()
    assert len(list(tmp_path.iterdir())) == 1
    bench.engine.forget("a")
    assert list(tmp_path.iterdir()) == []
    assert bench.runtime.n_used == 0
    bench.engine.save_all(10)
    assert list(tmp_path.iterdir()) == []
