"""A conversation over several turns: only what is new is computed, and nothing is tokenized twice."""

from edgechat.records import Capabilities
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import IM_END, ScriptedRuntime

NEXT = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def test_the_next_turn_computes_only_what_is_new() -> None:
    bench = Bench()
    tokenizer = bench.runtime.tokenizer
    bench.runtime.answer("assistant\n", tuple(b"Hello"))  # spelt, not the one token it would be
    assert bench.ask(1, "hi", conversation="a") == "Hello"
    before, encoded = bench.runtime.n_decoded, tokenizer.n_encoded
    assert bench.ask(2, "hi", "Hello", "more", conversation="a") == "Hello"
    timings = bench.finished(2).timings
    new = tokenizer.encode(NEXT.format("more"))
    assert timings.cached_tokens == before
    assert timings.prefill_tokens == len(new)
    assert bench.runtime.n_decoded == before + len(new) + 5
    assert tokenizer.n_encoded - encoded == 2 * len(NEXT.format("more"))  # by the engine, and by this test
    assert bench.runtime.tokens(0)[before - 5 :][:7] == [*b"Hello", IM_END, 10]


def test_a_turn_that_was_cut_by_its_limit_goes_on() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "abcdef")
    assert bench.ask(1, "hi", conversation="a", max_tokens=3) == "abc"
    assert bench.runtime.tokens(0)[-2:] == [*b"ab"]  # the last token was never computed
    bench.ask(2, "hi", "abc", "more", conversation="a")
    new = len(bench.runtime.tokenizer.encode(NEXT.format("more")))
    assert bench.finished(2).timings.prefill_tokens == new + 1


def test_a_turn_that_was_cut_in_a_character_goes_on_before_it() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", [*"ab😀".encode()])
    assert bench.ask(1, "hi", conversation="a", max_tokens=5) == "ab"
    held = len(bench.runtime.tokens(0))  # up to the second byte of the character
    assert bench.runtime.tokens(0)[-4:] == [*"ab😀".encode()[:4]]
    bench.ask(2, "hi", "ab", "more", conversation="a")
    new = bench.runtime.tokenizer.encode(NEXT.format("more"))
    assert bench.finished(2).timings.cached_tokens == held - 2
    assert bench.finished(2).timings.prefill_tokens == len(new)
    assert bench.runtime.tokens(0)[held - 4 :][: 2 + len(new)] == [*b"ab", *new]


def test_a_cancelled_turn_goes_on() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "abcdef")
    bench.submit(1, "hi", conversation="a")
    for _ in range(4):
        bench.engine.step()
    bench.engine.cancel(1)
    assert bench.text(1) == "abcd"
    bench.ask(2, "hi", "abcd", "more", conversation="a")
    new = len(bench.runtime.tokenizer.encode(NEXT.format("more")))
    assert bench.finished(2).timings.prefill_tokens == new + 1


def test_asking_again_computes_one_token() -> None:
    bench = Bench()
    first = bench.ask(1, "hi", conversation="a")
    assert bench.ask(2, "hi", conversation="a") == first
    assert bench.finished(2).timings.prefill_tokens == 1


def test_an_edited_question_computes_from_the_edit_on() -> None:
    bench = Bench()
    bench.ask(1, "!Be kind.", "what is it", conversation="a")
    edited = bench.ask(2, "!Be kind.", "what was it", conversation="a")
    tokenizer = bench.runtime.tokenizer
    same = len(tokenizer.encode("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nwhat "))
    assert bench.finished(2).timings.cached_tokens == same
    assert edited == Bench().ask(1, "!Be kind.", "what was it")


def test_every_turn_is_as_if_computed_from_nothing() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=2000))
    contents = ["hi"]
    for turn in range(5):
        answer = bench.ask(turn, *contents, conversation="a", max_tokens=12)
        held = bench.runtime.tokens(0)
        fresh = ScriptedRuntime(n_ctx=2000)
        assert bench.finished(turn).tokens[-1] == int(
            fresh._row(held[: bench.finished(turn).n_context - 1]).argmax()
        )
        contents += [answer, f"and {turn}"]


def test_without_rollback_an_edit_computes_all_but_the_next_turn_does_not() -> None:
    can = Capabilities(shift=False, rollback=0, fork=False)
    bench = Bench(ScriptedRuntime(can=can))
    bench.runtime.answer("assistant\n", "Hello")
    bench.ask(1, "hi", conversation="a")
    bench.ask(2, "hi", "Hello", "more", conversation="a")
    assert bench.finished(2).timings.cached_tokens > 0
    bench.ask(3, "hi", "Hello", "else", conversation="a")
    assert bench.finished(3).timings.cached_tokens == 0
    assert bench.text(3) == "Hello"


def test_a_runtime_that_can_take_back_less_than_it_says() -> None:
    class Stubborn(ScriptedRuntime):
        def truncate(self, sequence: int, length: int) -> None:
            raise ValueError("the window is gone")

    bench = Bench(Stubborn())
    first = bench.ask(1, "hi", conversation="a")
    assert bench.ask(2, "hi", conversation="a") == first
    assert bench.finished(2).timings.cached_tokens == 0


def test_a_client_without_conversations_profits_too() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", tuple(b"Hello"))
    bench.ask(1, "hi")
    bench.ask(2, "hi", "Hello", "more")
    assert bench.finished(2).timings.prefill_tokens == len(
        bench.runtime.tokenizer.encode(NEXT.format("more"))
    )


def test_conversations_share_their_head() -> None:
    bench = Bench()
    bench.ask(1, "!Be kind.", "hi", conversation="a")
    used = bench.runtime.n_used
    other = bench.ask(2, "!Be kind.", "ho", conversation="b")
    head = len(bench.runtime.tokenizer.encode("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nh"))
    timings = bench.finished(2).timings
    assert timings.cached_tokens == head
    assert bench.runtime.n_used == used + timings.prefill_tokens + 15  # the head's cells are shared
    assert other == Bench().ask(1, "!Be kind.", "ho")
    bench.ask(3, "!Be kind.", "hi", conversation="a")
    assert bench.finished(3).timings.prefill_tokens == 1  # a is still there


def test_the_least_recently_used_conversation_goes() -> None:
    bench = Bench(ScriptedRuntime(n_sequences=2, can=Capabilities(shift=True, rollback=-1, fork=False)))
    for id, name in enumerate("abac"):
        bench.ask(id, f"{name} hi", conversation=name)
    bench.ask(10, "a hi", conversation="a")
    assert bench.finished(10).timings.prefill_tokens == 1
    bench.ask(11, "b hi", conversation="b")
    assert bench.finished(11).timings.prefill_tokens > 1


def test_its_tokens_outlive_its_cells() -> None:
    bench = Bench(ScriptedRuntime(n_sequences=1))
    bench.runtime.answer("assistant\n", tuple(b"Hello"))
    bench.ask(1, "hi", conversation="a")
    bench.ask(2, "other", conversation="b")
    bench.ask(3, "hi", "Hello", "more", conversation="a")
    assert b"Hello" in bytes(token % 256 for token in bench.runtime.tokens(0))


def test_an_idle_conversation_makes_room() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=100))
    bench.ask(1, "x" * 50, conversation="a")
    bench.ask(2, "y" * 50, conversation="b")
    assert len(bench.finished(2).tokens) == 16
    assert bench.runtime.length(0) == 0


def test_all_idle_cells_can_be_given_back() -> None:
    bench = Bench()
    bench.ask(1, "hi", conversation="a")
    bench.submit(2, "ho", conversation="b")
    bench.engine.step()
    bench.engine.release_idle()
    assert bench.runtime.length(0) == 0
    bench.run()
    assert len(bench.finished(2).tokens) == 16
