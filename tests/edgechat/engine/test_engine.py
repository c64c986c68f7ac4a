"""One answer: its text, its end, its events and its timings."""

from collections.abc import Sequence

import pytest

from edgechat.engine.process.messages import Event, Generate
from edgechat.errors import ExitCode
from edgechat.records import FinishReason, SamplingSettings
from edgechat.runtimes.base import Logits
from tests.edgechat.engine.harness import GREEDY, Bench, ChatML, Delta, Finished, Note, Prefilled
from tests.edgechat.scripted_runtime import BOS, IM_END, ScriptedRuntime, ToyTokenizer, toy_logits


def plain_loop(runtime: ScriptedRuntime, prompt: list[int], count: int) -> list[int]:
    """What greedy decoding gives, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(toy_logits(tokens, runtime.tokenizer.n_vocab).argmax()))
    return tokens[len(prompt) :]


def test_the_answer_is_the_model_s() -> None:
    bench = Bench()
    bench.submit(1, "hi", max_tokens=30)
    bench.run()
    prompt = bench.runtime.tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    expected = plain_loop(bench.runtime, prompt, 30)
    assert list(bench.finished(1).tokens) == expected
    text = b"".join(map(bench.runtime.tokenizer.piece, expected)).decode("utf-8", "replace")
    assert bench.text(1) == text
    assert bench.finished(1).reason == FinishReason.LENGTH
    assert bench.runtime.n_decoded == len(prompt) + 29  # the last one needn't be
    assert not bench.engine.step()
    assert not bench.engine.busy


def test_the_end_of_the_turn_ends_it_and_is_no_part_of_it() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "Hello world")
    assert bench.ask(1, "hi") == "Hello world"
    assert bench.finished(1).reason == FinishReason.STOP
    assert bench.finished(1).tokens == (260, 261)
    assert bench.finished(1).n_context == bench.runtime.length(0)


def test_an_empty_answer() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "")
    assert bench.ask(1, "hi") == ""
    assert bench.finished(1).tokens == ()
    assert bench.finished(1).timings.decode_tokens == 0
    assert bench.finished(1).timings.ttft_s > 0


def test_ignore_eog_goes_on() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "Hello")
    bench.ask(1, "hi", ignore_eog=True, max_tokens=4)
    assert bench.finished(1).tokens[:2] == (260, IM_END)
    assert len(bench.finished(1).tokens) == 4
    assert bench.finished(1).reason == FinishReason.LENGTH


def test_a_stop_string_across_tokens() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "Hello world### more")
    assert bench.ask(1, "hi", stop=("###",)) == "Hello world"
    assert bench.finished(1).reason == FinishReason.STOP
    assert bench.finished(1).tokens == (260, 261)


def test_what_could_begin_a_stop_string_is_told_at_the_end() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", "Hello##")
    assert bench.ask(1, "hi", stop=("###",)) == "Hello##"


def test_characters_across_tokens() -> None:
    bench = Bench(step_s=1.0)
    bench.runtime.answer("assistant\n", [*"😀é".encode(), 0xE4])
    assert bench.ask(1, "hi") == "😀é\ufffd"
    assert [delta.text for delta in bench.of(1, Delta)] == ["😀", "é", "\ufffd"]


def test_the_limit_leaves_an_unfinished_character_out_of_the_text() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", [*"é😀".encode()])
    for limit, text in ((1, ""), (2, "é"), (3, "é"), (5, "é"), (6, "é😀")):
        assert bench.ask(limit, "hi", max_tokens=limit) == text
        assert bench.finished(limit).tokens == tuple("é😀".encode()[:limit])
    bench.runtime.answer("assistant\n", b"a\xff\xed\xa0")  # the last two begin a surrogate
    assert bench.ask(7, "hi", max_tokens=4) == b"a\xff\xed\xa0".decode("utf-8", "replace")


def test_cancelling_leaves_an_unfinished_character_out_of_the_text() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", [*"é😀".encode()])
    bench.submit(1, "hi")
    for _ in range(5):
        bench.engine.step()
    bench.engine.cancel(1)
    assert bench.finished(1).tokens == tuple("é😀".encode()[:5])
    assert bench.text(1) == "é"


def test_what_a_stop_string_held_back_is_told_and_the_unfinished_character_behind_it_is_not() -> None:
    bench = Bench()
    bench.runtime.answer("assistant\n", [*"Hello##😀".encode()])
    assert bench.ask(1, "hi", stop=("###", "##😀!"), max_tokens=9) == "Hello##"
    assert bench.finished(1).reason == FinishReason.LENGTH


def test_the_first_token_is_told_at_once_then_one_delta_in_50_ms() -> None:
    bench = Bench(step_s=1 / 64)  # four of which are 62.5 ms, and three 47
    bench.runtime.answer("assistant\n", "abcdefghij")
    bench.ask(1, "hi")
    assert [delta.text for delta in bench.of(1, Delta)] == ["a", "bcde", "fghi", "j"]
    assert [delta.n_tokens for delta in bench.of(1, Delta)] == [1, 5, 9, 10]
    bench = Bench(step_s=0.01)
    bench.runtime.answer("assistant\n", "abc")
    bench.ask(1, "hi")
    assert [delta.text for delta in bench.of(1, Delta)] == ["a", "bc"]


def test_long_prompts_go_in_slices_and_tell_how_far_they_are() -> None:
    bench = Bench(ScriptedRuntime(n_batch=32), step_s=0.06)
    bench.submit(1, "x" * 100, max_tokens=1)
    bench.run()
    total = len(bench.runtime.tokenizer.encode("<|im_start|>user\n" + "x" * 100)) + 5
    assert [len(batch[0].tokens) for batch in bench.runtime.batches] == [32, 32, 32, total - 96]
    # One report in 0.1 s, with steps of 0.06 s, and the last.
    assert [(e.done, e.total, e.cached) for e in bench.of(1, Prefilled)] == [
        (32, total, 0), (96, total, 0), (total, total, 0)
    ]  # fmt: skip


def test_timings() -> None:
    bench = Bench(step_s=0.5, load_s=2.5)
    bench.runtime.answer("assistant\n", "abcde")
    bench.submit(1, "hi")
    bench.clock.now += 1.0  # waits in the queue
    bench.run()
    timings = bench.finished(1).timings
    prompt = len(bench.runtime.tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    assert timings.load_s == 2.5
    assert timings.ttft_s == 1.5
    assert (timings.prefill_tokens, timings.prefill_s, timings.cached_tokens) == (prompt, 0.5, 0)
    assert (timings.decode_tokens, timings.decode_s, timings.tokens_per_s) == (5, 2.0, 2.0)
    bench.ask(2, "hi")
    assert bench.finished(2).timings.load_s == 0


def test_one_bos() -> None:
    for bos in ("", "<s>"):
        bench = Bench(ScriptedRuntime(tokenizer=ToyTokenizer(add_bos=True)), ChatML(bos=bos))
        bench.ask(1, "hi")
        assert bench.runtime.tokens(0)[:2] == [BOS, 257]
    bench = Bench(ScriptedRuntime(tokenizer=ToyTokenizer(add_bos=True)))
    bench.engine.submit(Generate(1, prompt="hi", sampling=GREEDY, max_tokens=2))
    bench.run()
    assert bench.runtime.tokens(0)[:3] == [BOS, *b"hi"]


def test_a_prompt_is_taken_as_it_is() -> None:
    bench = Bench()
    bench.runtime.answer("once upon", " a")
    bench.engine.submit(Generate(1, prompt="once upon", sampling=GREEDY))
    bench.run()
    assert bench.text(1) == " a"
    assert bench.of(1, Note) == []


def test_a_base_model_continues_a_transcript_and_that_is_said_once() -> None:
    bench = Bench(template=None)
    bench.runtime.answer("Be kind.\n\nUser: hi\nAssistant:", " Hello world\nUser: so")
    assert bench.ask(1, "!Be kind.", "hi", conversation="a", max_tokens=30) == "Hello world"
    (note,) = bench.of(1, Note)
    assert note.kind == "no_template"
    assert "base model" in note.text
    bench.runtime.answer("\nUser: so\nAssistant:", " and so on")
    before = bench.runtime.n_decoded
    assert bench.ask(2, "!Be kind.", "hi", "Hello world", "so", conversation="a") == "and so on"
    # Of the transcript the answer's tokens are as they were generated, the spelt "\nUser:" among them.
    assert bench.finished(2).timings.cached_tokens == before - bench.of(1, Finished)[0].timings.cached_tokens


def test_the_template_s_notes_are_passed_on() -> None:
    bench = Bench(template=ChatML(notes=("system_folded",)))
    bench.ask(1, "!Be kind.", "hi")
    assert [note.kind for note in bench.of(1, Note)] == ["system_folded"]
    assert bench.of(1, Note)[0].text.endswith(".")


def test_a_cancelled_answer_keeps_what_it_has() -> None:
    bench = Bench(step_s=0.001)
    bench.submit(1, "hi", max_tokens=100)
    for _ in range(5):
        bench.engine.step()
    bench.engine.cancel(1)
    assert bench.finished(1).reason == FinishReason.CANCELLED
    assert len(bench.finished(1).tokens) == 5
    assert len(bench.text(1)) >= 5
    assert not bench.engine.step()
    bench.engine.cancel(1)  # nothing to do
    bench.engine.cancel(77)
    assert len(bench.of(1, Finished)) == 1


def test_a_cancelled_prompt() -> None:
    bench = Bench(ScriptedRuntime(n_batch=32))
    bench.submit(1, "x" * 200)
    bench.engine.step()
    bench.engine.cancel(1)
    assert bench.finished(1).reason == FinishReason.CANCELLED
    assert bench.finished(1).tokens == ()
    assert bench.finished(1).timings.prefill_tokens == 32
    assert not bench.engine.step()


def test_an_answer_does_not_end_with_the_context() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=64))
    bench.submit(1, "hi", max_tokens=500)
    bench.run()
    assert len(bench.finished(1).tokens) == 500
    assert bench.finished(1).n_context <= 64


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=64))
    bench.submit(1, "x" * 100)
    assert bench.refused(1).code == ExitCode.USAGE
    error = bench.refused(1).error
    assert error == (
        "the prompt is 45 tokens too long: it has 108 tokens, and in the context of 64 there is room for 63 "
        "of them: shorten it, or start edgechat with a longer context (--ctx 109)"
    )
    assert bench.refused(1).too_long
    assert "\n" not in error
    assert not bench.engine.step()
    bench.submit(2, "x" * 10_000)
    assert "--ctx" not in bench.refused(2).error  # more than the model was trained on
    assert bench.ask(3, "x" * 50)


def test_a_prompt_with_room_for_one_token() -> None:
    bench = Bench(ScriptedRuntime(n_ctx=64))
    bench.submit(1, "x" * 55, max_tokens=1)
    bench.run()
    assert len(bench.finished(1).tokens) == 1
    assert bench.finished(1).n_context == 64


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Generate(1), "either messages or a prompt"),
        (Generate(1, prompt="a", max_tokens=-1), "max-tokens of -1"),
        (Generate(1, prompt="a", stop=("",)), "stop string is empty"),
        (Generate(1, prompt="a", stop=("x",) * 65), "65 stop strings"),
    ],
)
def test_what_makes_no_sense_is_refused(request_: Generate, said: str) -> None:
    bench = Bench()
    bench.engine.submit(request_)
    assert bench.refused(1).code == ExitCode.USAGE
    assert said in bench.refused(1).error
    assert not bench.engine.busy


def test_a_number_in_use_is_refused() -> None:
    events: list[Event] = []
    bench = Bench()
    bench.submit(1, "hi")
    bench.submit(1, "ho")
    events = bench.of(1)
    assert [type(event).__name__ for event in events] == ["Refused"]
    bench.run()
    assert len(bench.of(1, Finished)) == 1


def test_a_template_that_fails_is_refused() -> None:
    from models.errors import UnsupportedTemplate

    class Failing:
        def render(self, messages: Sequence[object], add_generation_prompt: bool = True) -> None:
            raise UnsupportedTemplate("the chat template can't be rendered: no")

    bench = Bench(template=Failing())
    bench.submit(1, "hi")
    assert bench.refused(1).code == ExitCode.UNSUPPORTED
    assert bench.refused(1).error == "the chat template can't be rendered: no"


def test_a_bug_ends_the_answer_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def broken(text: str, *, special: bool = True) -> list[int]:
        raise KeyError("oh")

    working, bench.runtime.tokenizer.encode = bench.runtime.tokenizer.encode, broken  # type: ignore[method-assign]
    bench.submit(1, "hi")
    assert bench.refused(1).code == ExitCode.BUG
    assert "KeyError" in bench.refused(1).error
    assert "Traceback" in caplog.text  # for the engine's log
    bench.runtime.tokenizer.encode = working  # type: ignore[method-assign]
    assert bench.ask(2, "hi")


def test_numbers_that_are_none_end_the_answer_not_the_engine() -> None:
    def damaged(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = toy_logits(tokens, n_vocab)
        if len(tokens) > 20:
            row[3] = float("nan")
        return row

    bench = Bench(ScriptedRuntime(logits=damaged))
    bench.submit(1, "hi", max_tokens=0)
    bench.run()
    assert bench.refused(1).code == ExitCode.ENGINE_CRASHED
    assert "edgechat models verify" in bench.refused(1).error
    assert bench.runtime.n_used == 0
    assert bench.ask(2, "hi", max_tokens=3)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_seed_decides_the_answer(temperature: float) -> None:
    texts = []
    for seed in (1, 1, 2):
        bench = Bench()
        sampling = SamplingSettings(temperature=temperature, seed=seed)
        texts.append(bench.ask(1, "hi", sampling=sampling, max_tokens=40))
    assert texts[0] == texts[1]
    assert (texts[0] == texts[2]) == (temperature == 0)
