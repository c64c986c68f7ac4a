"""Summaries of what leaves the context: what the model sees, computes and tells."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine import summary
from edgechat.engine.process.messages import Delta, Evicted, Finished, Generate, Note, Refused, Summarizing
from edgechat.engine.rendering import PlainRenderer
from edgechat.engine.states import open_states
from edgechat.records import Capabilities, FinishReason
from edgechat.runtimes.base import Chunk, DecodeFailed
from tests.edgechat.engine.harness import Bench, ChatML
from tests.edgechat.engine.test_engine_window import MACHINES, NO_ROLLBACK, message
from tests.edgechat.scripted_runtime import ScriptedRuntime

N_CTX = 2000
ASKED = summary.INSTRUCTION + "<|im_end|>\n<|im_start|>assistant\n"
SUMMARY = "They spoke of letters. The first was a."


def bench_of(can: Capabilities | None = None, says: str = SUMMARY, **options: Any) -> Bench:
    if can is not None:
        options["can"] = can
    engine = {name: options.pop(name) for name in ("states", "max_waiting") if name in options}
    bench = Bench(ScriptedRuntime(n_ctx=N_CTX, n_batch=256, **options), **engine)
    bench.runtime.answer(ASKED, says)
    return bench


def question(i: int) -> str:
    return f"{i:02}" + "x" * 300


def converse(
    bench: Bench, turns: Sequence[int], contents: list[str] | None = None, **options: Any
) -> list[str]:
    """Ask question after question; returns all contents."""
    contents = ["!Be kind."] if contents is None else contents
    options = {"conversation": "a", "summarize": True, "max_tokens": 60} | options
    for i in turns:
        contents.append(question(i))
        bench.runtime.answer(contents[-1] + "<|im_end|>\n<|im_start|>assistant\n", f"{i:02}" + "y" * 30)
        contents.append(bench.ask(i, *contents, **options))
        assert contents[-1] == f"{i:02}" + "y" * 30
    return contents


def seen(contents: Sequence[str], n_gone: int, text: str = SUMMARY) -> str:
    """What the template would write of what is left, with the summary in its first message."""
    roles = ("user", "assistant")
    left = list(contents[1 + n_gone :])
    if text:
        left[0] = summary.BEFORE + text + summary.AFTER + left[0]
    parts = [message(roles[i % 2], content) for i, content in enumerate(left)]
    return message("system", contents[0][1:]) + "".join(parts).removesuffix("<|im_end|>\n")


def text_of(bench: Bench, sequence: int = 0) -> str:
    return "".join(map(bench.runtime.tokenizer.name, bench.runtime.tokens(sequence)))


def held(bench: Bench) -> str:
    """The text of the sequence that holds most."""
    return max((text_of(bench, i) for i in range(bench.runtime.n_sequences)), key=len)


def evictions(bench: Bench, id: int) -> list[Evicted]:
    return [event for event in bench.of(id, Evicted) if event.n_tokens]


def first_eviction(bench: Bench) -> int:
    """The turn with which something went."""
    return next(event.id for event in bench.events if isinstance(event, Evicted) and event.n_tokens)


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


# --- where it fails, what goes is forgotten, and the answer comes all the same


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


def waiting_for_it(bench: Bench) -> list[str]:
    """Step into the middle of a summary; the contents with the question that waits for it."""
    contents = converse(bench, range(3))
    for i in range(3, 9):
        contents = [*contents, question(i)]
        bench.submit(i, *contents, conversation="a", summarize=True, max_tokens=60)
        for _ in range(4):
            bench.engine.step()
        if bench.of(i, Summarizing):
            return contents
        bench.run()
        contents.append(bench.text(i))
    raise AssertionError("nothing goes")


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


# --- beside others


def test_others_are_answered_meanwhile() -> None:
    bench = bench_of()
    waiting_for_it(bench)
    alone = bench_of()
    bench.submit(80, "other", max_tokens=30, conversation="b")
    bench.run()
    assert bench.text(80) == alone.ask(1, "other", max_tokens=30)


operations = st.one_of(
    st.tuples(
        st.just("ask"), st.sampled_from("abc"), st.integers(1, 500), st.integers(1, 300), st.booleans()
    ),
    st.tuples(st.just("step"), st.integers(1, 200), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("fail"), st.integers(0, 3), st.just(0), st.just(0), st.just(False)),
)
machines = st.builds(
    dict,
    n_sequences=st.integers(1, 3),
    can=st.builds(
        Capabilities, shift=st.booleans(), rollback=st.sampled_from([-1, 0, 5]), fork=st.booleans()
    ),
)


class Conversations:
    """What three people say, in turn with what they are answered."""

    def __init__(self) -> None:
        self.contents: dict[str, list[str]] = {name: [] for name in "abc"}
        self.open: dict[str, int] = {}


@settings(max_examples=60, deadline=None)
@given(machines, st.lists(operations, min_size=6, max_size=24), st.sampled_from([SUMMARY, "", "no end"]))
def test_chaos(machine: dict[str, Any], script: list[tuple[Any, ...]], says: str) -> None:
    failing: list[int] = [0]
    bench = bench_of(says=says, max_waiting=12, **machine)
    before = bench.runtime.on_decode

    def decode(batch: Sequence[Chunk]) -> None:
        before(batch)
        if failing[0]:
            failing[0] -= 1
            raise DecodeFailed("no")

    bench.runtime.on_decode = decode
    people = Conversations()
    asked: dict[int, str] = {}

    def settle(name: str) -> None:
        id = people.open.pop(name, None)
        if id is not None:
            bench.run()
            people.contents[name].append(bench.text(id) or "-")

    for kind, first, length, count, summarize in script:
        if kind == "ask":
            settle(first)
            id = len(asked)
            asked[id] = first
            people.contents[first].append(f"{id}" + "q" * length)
            people.open[first] = id
            bench.submit(
                id, *people.contents[first], conversation=first, summarize=summarize, max_tokens=count
            )
        elif kind == "step":
            for _ in range(first):
                bench.engine.step()
        elif kind == "cancel":
            bench.engine.cancel(first)
        else:
            failing[0] = first
    failing[0] = 0
    bench.run()
    for id in asked:
        (end,) = bench.of(id, (Finished, Refused))
        assert bench.of(id)[-1] is end
        if isinstance(end, Finished):
            text = b"".join(map(bench.runtime.tokenizer.piece, end.tokens)).decode("utf-8", "replace")
            assert bench.text(id) == text
            assert end.n_context <= N_CTX
            assert 0 <= end.n_pinned <= end.n_context
    for slot in bench.engine._cache.slots:
        assert not slot.busy
        assert bench.runtime.tokens(slot.number) == slot.tokens


def templates() -> Iterator[Any]:
    """Renderers of several kinds."""
    yield ChatML()
    yield ChatML(bos="<s>")


@pytest.mark.parametrize("renderer", list(templates()))
def test_the_question_is_what_the_template_would_write(renderer: Any) -> None:
    from edgechat.engine.sequence import TextTokens
    from models.chat import ChatMessage

    runtime = ScriptedRuntime(n_ctx=N_CTX)
    found = summary.Summaries(renderer, TextTokens(runtime.tokenizer), N_CTX)
    assert found.possible
    asked_for = ChatMessage("user", summary.INSTRUCTION)
    messages = [ChatMessage("user", "q"), ChatMessage("assistant", "a"), asked_for]
    whole = renderer.render(messages, True).text
    asked = "".join(map(runtime.tokenizer.name, found.question))
    assert whole.endswith("<|im_start|>assistant\na" + asked)
    assert found.reserve <= N_CTX // 2


@pytest.mark.parametrize(
    ("text", "whole", "kept"),
    [
        ("A fact. Another", True, "A fact. Another"),
        ("A fact. Another", False, "A fact."),
        ("A fact", False, ""),
        ("Line\nand", False, "Line"),
        ("事实。还有", False, "事实。"),
        ("Version 1.2 is", False, ""),
        ("**Summary:** A fact.", True, "A fact."),
        ("Here is the summary of our conversation:\nA fact.", True, "A fact."),
        ("<think>\nHm.\n</think>\n\nA fact.", True, "A fact."),
        ("<think>\nHm.", True, ""),
        ("  \n", True, ""),
        ("Summary of facts", True, "Summary of facts"),
    ],
)
def test_what_is_kept_of_an_answer(text: str, whole: bool, kept: str) -> None:
    assert summary.usable(text, whole=whole) == kept


def test_requests_carry_it() -> None:
    import msgspec

    request = Generate(1, prompt="x", summarize=True, summary="A fact.", summarized=3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request
