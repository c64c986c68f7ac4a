"""Conversations longer than the context: what the cache holds, what is computed, what is told."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from edgechat.engine.process.messages import Evicted, Generate, Note
from edgechat.records import Capabilities, FinishReason
from edgechat.runtimes.base import Chunk, ContextFull, Logits
from tests.edgechat.engine.harness import GREEDY, MACHINES, NO_ROLLBACK, NO_SHIFT, Bench, message
from tests.edgechat.scripted_runtime import ScriptedRuntime

LETTERS = "abcdefghijklmnop"


def machine(can: Capabilities | None, n_ctx: int = 300, **options: object) -> ScriptedRuntime:
    if can is not None:
        options["can"] = can
    return ScriptedRuntime(n_ctx=n_ctx, **options)  # type: ignore[arg-type]


def scripted(bench: Bench, n_turns: int) -> list[str]:
    """Questions, the i-th of which is answered with its letter and y * 40."""
    questions = [LETTERS[i] + "x" * 40 for i in range(n_turns)]
    for i, question in enumerate(questions):
        bench.runtime.answer(question + "<|im_end|>\n<|im_start|>assistant\n", LETTERS[i] + "y" * 40)
    return questions


def converse(bench: Bench, n_turns: int, first_id: int = 0) -> list[str]:
    """The contents of a conversation of `n_turns` turns, the last answer included."""
    contents = ["!Be kind."]
    for i, question in enumerate(scripted(bench, n_turns)):
        contents.append(question)
        contents.append(bench.ask(first_id + i, *contents, conversation="a", max_tokens=60))
        assert contents[-1] == LETTERS[i] + "y" * 40
    return contents


def kept(contents: Sequence[str], first_turn: int, *, open_: bool = True) -> str:
    """The text that the model should see: the system prompt and the turns from `first_turn` on."""
    roles = ("user", "assistant")
    parts = [message("system", contents[0][1:])]
    parts += [
        message(roles[i % 2], content) for i, content in enumerate(contents[1:]) if i // 2 >= first_turn
    ]
    text = "".join(parts)
    return text.removesuffix("<|im_end|>\n") if open_ else text


@MACHINES
def test_the_oldest_turns_go_and_the_cache_is_what_a_fresh_prefill_would_be(can: Capabilities | None) -> None:
    bench = Bench(machine(can))
    contents = converse(bench, 12)
    tokenizer = bench.runtime.tokenizer
    evictions = [event for event in bench.events if isinstance(event, Evicted) and event.n_tokens]
    assert len(evictions) >= 3
    gone = evictions[-1].messages
    assert gone == tuple(range(1, len(gone) + 1))
    assert len(gone) % 2 == 0  # whole turns
    assert evictions[-1].cut == ()
    assert bench.runtime.tokens(0) == tokenizer.encode(kept(contents, len(gone) // 2))
    assert evictions[-1].n_pinned == len(tokenizer.encode(message("system", "Be kind.")))
    assert evictions[-1].n_kept <= 300
    everything = tokenizer.encode(kept(contents, 0))
    assert evictions[-1].n_lost == len(everything) - len(bench.runtime.tokens(0))


@MACHINES
def test_each_turn_computes_only_what_is_new_and_what_went_stays_out(can: Capabilities | None) -> None:
    bench = Bench(machine(can))
    converse(bench, 12)
    step = "<|im_end|>\n<|im_start|>user\naxx<|im_end|>\n<|im_start|>assistant\n"
    new = len(bench.runtime.tokenizer.encode(step)) + 38
    lost = 0
    for turn in range(1, 12):
        prefill = bench.finished(turn).timings.prefill_tokens
        events = bench.of(turn, Evicted)
        evicted = any(event.n_tokens for event in events)
        if can is None or not evicted:
            assert prefill <= new + 1, turn
        if events:
            assert events[0].n_lost >= lost
            if not evicted:
                assert events[0].n_lost == lost  # told again, at the beginning of the answer
        lost = events[-1].n_lost if events else lost
    assert lost


@MACHINES
def test_an_answer_longer_than_the_context(can: Capabilities | None) -> None:
    bench = Bench(machine(can, 200))
    bench.submit(1, "!Be kind.", "hello", max_tokens=1500, conversation="a")
    bench.run()
    finished = bench.finished(1)
    assert finished.reason == FinishReason.LENGTH
    assert len(finished.tokens) == 1500
    assert finished.n_context <= 200
    tokenizer = bench.runtime.tokenizer
    prompt = tokenizer.encode(message("system", "Be kind.") + message("user", "hello"))
    prompt += tokenizer.encode("<|im_start|>assistant\n")
    held = bench.runtime.tokens(0)
    n_seen = len(held) - len(prompt)
    assert held == prompt + list(finished.tokens[-1 - n_seen : -1])  # the last one is not computed
    events = bench.of(1, Evicted)
    assert all(event.cut == (2,) and event.messages == () for event in events)
    assert all(event.n_tokens >= 200 // 8 for event in events)
    (note,) = bench.of(1, Note)
    assert note.kind == "window"
    assert "beginning of this answer" in note.text
    assert bench.text(1) == b"".join(map(tokenizer.piece, finished.tokens)).decode("utf-8", "replace")


def test_texts_are_the_same_however_the_cache_gets_there() -> None:
    texts = set()
    for can in (NO_SHIFT, NO_ROLLBACK):
        bench = Bench(machine(can, 200))
        texts.add(bench.ask(1, "hello", max_tokens=600))
    assert len(texts) == 1


def test_after_a_cut_answer_only_the_new_question_is_computed() -> None:
    for length in range(500, 530):
        bench = Bench(machine(None, 200))
        answer = bench.ask(1, "hello", max_tokens=length, conversation="a")
        if bench.finished(1).n_context < 180:
            break
    before = bench.runtime.tokens(0)
    bench.ask(2, "hello", answer, "more", max_tokens=3, conversation="a")
    new = bench.runtime.tokenizer.encode("<|im_end|>\n" + message("user", "more") + "<|im_start|>assistant\n")
    timings = bench.finished(2).timings
    assert timings.prefill_tokens == len(new) + 1
    assert bench.runtime.tokens(0)[: len(before)] == before
    event = bench.of(2, Evicted)[0]
    assert (event.messages, event.cut, event.n_tokens) == ((), (1,), 0)
    assert bench.of(2, Note) == []


def test_an_edit_before_what_went_begins_anew() -> None:
    bench = Bench(machine(None))
    contents = converse(bench, 8)
    assert bench.of(7, Evicted)
    bench.ask(20, "!Be kind.", "another", contents[2], "more", conversation="a")
    assert bench.of(20, Evicted) == []
    fresh = Bench(machine(None))
    assert bench.text(20) == fresh.ask(1, "!Be kind.", "another", contents[2], "more")


def test_another_conversation_gets_no_cell_that_saw_what_is_gone() -> None:
    bench = Bench(machine(None))
    contents = converse(bench, 8)
    gone = bench.of(7, Evicted)[-1].messages
    seen = [contents[0], *contents[1 + len(gone) :]]  # the very tokens that are left
    bench.ask(30, *seen, "more", conversation="b")
    head = len(bench.runtime.tokenizer.encode(message("system", "Be kind.") + "<|im_start|>user\n"))
    assert bench.finished(30).timings.cached_tokens <= head


def test_a_client_without_conversations_slides_too() -> None:
    bench = Bench(machine(None))
    contents = ["!Be kind."]
    for i, question in enumerate(scripted(bench, 12)):
        contents.append(question)
        contents.append(bench.ask(i, *contents, max_tokens=60))
    assert bench.of(11, Evicted)
    for turn in range(6, 12):
        assert bench.finished(turn).timings.prefill_tokens < 70


def test_two_conversations_at_once() -> None:
    bench = Bench(machine(None, 200))
    bench.submit(1, "hello", max_tokens=700, conversation="a")
    bench.submit(2, "good day", max_tokens=700, conversation="b")
    bench.run()
    for id, question in ((1, "hello"), (2, "good day")):
        alone = Bench(machine(None, 200))
        assert bench.text(id) == alone.ask(id, question, max_tokens=700)
        assert len(bench.finished(id).tokens) == 700


def test_an_endless_answer_lets_others_come() -> None:
    bench = Bench(machine(None, 200))
    bench.submit(1, "hello", max_tokens=100_000, conversation="a")
    for _ in range(400):
        bench.engine.step()
    bench.submit(2, "good day" * 10, max_tokens=120, conversation="b")
    for _ in range(1000):
        bench.engine.step()
    assert bench.finished(2)
    bench.engine.cancel(1)
    assert bench.finished(1).reason == FinishReason.CANCELLED
    assert len(bench.finished(1).tokens) > 1000


def test_cancelled_in_the_middle_it_goes_on_from_there() -> None:
    bench = Bench(machine(None, 200))
    bench.submit(1, "hello", max_tokens=0, conversation="a")
    for _ in range(450):
        bench.engine.step()
    bench.engine.cancel(1)
    answer = bench.text(1)
    bench.ask(2, "hello", answer, "more", max_tokens=3, conversation="a")
    assert bench.finished(2).timings.prefill_tokens < 50


def test_a_stop_string_across_an_eviction() -> None:
    for n in range(40, 60):
        text = iter(b"a" * n + b"STOPPED")

        def logits(tokens: Sequence[int], n_vocab: int, text: Iterator[int] = text) -> Logits:
            row = np.zeros(n_vocab, dtype=np.float32)
            row[next(text)] = 50
            return row

        bench = Bench(machine(None, 64, logits=logits))
        assert bench.ask(1, "hi", stop=("STOPPED",), max_tokens=99) == "a" * n
        assert bench.finished(1).tokens == (ord("a"),) * n
        assert bool(bench.of(1, Evicted)) == (10 + n + 6 > 64)


def test_a_prompt_longer_than_the_context_is_cut_if_asked() -> None:
    bench = Bench(machine(None, 200))
    text = "".join(f"[{i:03}]" for i in range(100))
    bench.submit(1, text, max_tokens=16)
    assert "too long" in bench.refused(1).error
    bench.submit(2, text, max_tokens=16, overflow="window")
    (event,) = bench.of(2, Evicted)
    assert event.cut == (0,)
    assert event.n_kept == 200 - 16
    (note,) = bench.of(2, Note)
    assert "middle of your message" in note.text
    bench.run()
    held = "".join(map(bench.runtime.tokenizer.name, bench.runtime.tokens(0)))
    assert held.startswith("<|im_start|>user\n[000][001]")
    assert "[098][099]<|im_end|>" in held
    assert len(bench.finished(2).tokens) == 16


@MACHINES
def test_a_raw_text_streams_behind_its_first_tokens(can: Capabilities | None) -> None:
    bench = Bench(machine(can, 128))
    bench.engine.submit(Generate(1, prompt="abcdefgh", sampling=GREEDY, max_tokens=1000))
    bench.run()
    held, answer = bench.runtime.tokens(0), bench.finished(1).tokens
    assert held[:4] == list(b"abcd")
    assert held[4:] == list(answer[-1 - len(held[4:]) : -1])
    assert len(answer) == 1000
    (note,) = bench.of(1, Note)
    assert "no longer sees a part of the text (" in note.text


def test_too_much_is_pinned() -> None:
    bench = Bench(machine(None, 100))
    bench.submit(1, "!" + "s" * 70, "hi", max_tokens=200)
    bench.run()
    assert bench.finished(1)  # a short window is still a window
    bench = Bench(machine(None, 100))
    bench.submit(1, "!" + "s" * 90, "hi")
    assert "too long" in bench.refused(1).error


def test_a_runtime_that_has_no_room_to_copy_a_shared_head() -> None:
    class Crowded(ScriptedRuntime):
        refusals = 0

        def evict(self, sequence: int, start: int, stop: int) -> None:
            if any(
                self._cells[other][:1] == self._cells[sequence][:1] for other in range(4) if other != sequence
            ):
                self.refusals += 1
                raise ContextFull
            super().evict(sequence, start, stop)

    bench = Bench(Crowded(n_ctx=300))
    contents = converse(bench, 2)
    bench.submit(30, "!Be kind.", "z", conversation="b")
    bench.engine.step()
    bench.engine.cancel(30)
    bench.runtime.truncate(1, 10)  # nothing but the shared head
    bench.engine._cache.slots[1].cut(10)
    alone = Bench(ScriptedRuntime(n_ctx=300))
    for id in range(40, 44):
        contents.append("x" * 30)
        answer = bench.ask(id, *contents, conversation="a", max_tokens=20)
        assert answer == alone.ask(id, *contents, conversation="a", max_tokens=20)
        contents.append(answer)
    assert bench.runtime.refusals  # type: ignore[attr-defined]
    assert bench.events[-1].n_context <= 300  # type: ignore[union-attr]


def test_a_runtime_that_can_not_evict_after_all() -> None:
    class Stubborn(ScriptedRuntime):
        def evict(self, sequence: int, start: int, stop: int) -> None:
            raise ValueError("the window is gone")

    bench = Bench(Stubborn(n_ctx=200))
    answer = bench.ask(1, "hello", max_tokens=600)
    assert answer == Bench(machine(None, 200)).ask(1, "hello", max_tokens=600)
    assert bench.runtime.tokens(0)[:4] == bench.runtime.tokenizer.encode("<|im_start|>user\nh")[:4]


def test_steps_stay_equally_small() -> None:
    sizes: list[int] = []

    def decode(batch: Sequence[Chunk]) -> None:
        sizes.append(sum(len(chunk.tokens) for chunk in batch))

    bench = Bench(ScriptedRuntime(n_ctx=200, on_decode=decode))
    bench.submit(1, "hello", max_tokens=3000)
    bench.run()
    assert set(sizes[1:]) == {1}


def test_time_flies_but_spans_are_found_once() -> None:
    rendered = []

    class Counting:
        def render(self, messages: Sequence[object], add_generation_prompt: bool = True) -> object:
            rendered.append(len(messages))
            return chatml.render(messages, add_generation_prompt)  # type: ignore[arg-type]

    from tests.edgechat.engine.harness import ChatML

    chatml = ChatML()
    bench = Bench(machine(None), Counting())
    converse(bench, 8)
    rendered.clear()
    contents = converse(bench, 8, first_id=60)
    bench.ask(50, *contents, "more", conversation="a", max_tokens=3)
    assert len(rendered) < 8 * 6


@pytest.mark.parametrize("period", [1, 7, 60])
def test_an_answer_that_only_repeats_itself_is_ended(period: int) -> None:
    def logits(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = np.zeros(n_vocab, dtype=np.float32)
        row[97 + len(held) % period] = 50
        held.append(0)
        return row

    held: list[int] = []
    bench = Bench(machine(None, 1000, logits=logits))
    bench.submit(1, "hello", max_tokens=0)
    bench.run()
    assert bench.finished(1).reason == FinishReason.LENGTH
    assert len(bench.finished(1).tokens) < 1000
    (note,) = bench.of(1, Note)
    assert "repeats itself" in note.text
    held.clear()
    bench.submit(2, "hello", max_tokens=3000, ignore_eog=True)
    bench.run()
    assert len(bench.finished(2).tokens) == 3000


def test_what_only_seems_to_repeat_itself_goes_on() -> None:
    def logits(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = np.zeros(n_vocab, dtype=np.float32)
        held.append(0)
        row[98 if len(held) % 300 == 0 else 97] = 50
        return row

    held: list[int] = []
    bench = Bench(machine(None, 1000, logits=logits))
    bench.submit(1, "hello", max_tokens=3000)
    bench.run()
    assert len(bench.finished(1).tokens) == 3000
