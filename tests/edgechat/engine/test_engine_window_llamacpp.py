"""The window and the saved states on llama.cpp: the starter shifts, Gemma computes anew what stays."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgechat.engine import summary
from edgechat.engine.engine import Engine
from edgechat.engine.process.messages import Event, Evicted, Finished, Generate
from edgechat.engine.states import StateStore
from edgechat.records import LoadSettings, SamplingSettings
from edgechat.runtimes.base import Chunk, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from models.chat import ChatMessage
from models.chat_template import ChatTemplate

pytestmark = pytest.mark.timeout(900)  # other programs may have the cores

GREEDY = SamplingSettings(temperature=0)
NEAR_TIE = 0.15
"""Logits that a batch of another size may turn around."""
TEXT = "The sea was calm and the small boat went slowly along the coast, where the houses are white. "


class Running:
    """An engine and its events."""

    def __init__(self, runtime: LlamaCppRuntime, states: StateStore | None = None) -> None:
        for sequence in range(runtime.n_sequences):
            runtime.free(sequence)
        source = runtime.info.chat_template
        template = None if source is None else ChatTemplate(source, bos="<|im_start|>", eos="<|im_end|>")
        self.runtime = runtime
        self.events: list[Event] = []
        self.engine = Engine(runtime, template, self.events.append, states=states)

    def answer(self, request: Generate) -> Finished:
        self.events.clear()
        self.engine.submit(request)
        while self.engine.step():
            self.check()
        last = self.events[-1]
        assert isinstance(last, Finished), last
        return last

    def check(self) -> None:
        """The engine's tokens are as many as llama.cpp's, and their positions have no gap."""
        for slot in self.engine._cache.slots:
            assert self.runtime.length(slot.number) == len(slot.tokens)
            if slot.tokens:
                assert self.runtime._cache.native_length(slot.number) == len(slot.tokens)

    @property
    def held(self) -> list[int]:
        return max((slot.tokens for slot in self.engine._cache.slots), key=len)

    def evictions(self) -> list[Evicted]:
        return [event for event in self.events if isinstance(event, Evicted)]


@pytest.fixture(scope="module", params=["f16", "q8_0"])
def starter(starter_gguf: Path, request: pytest.FixtureRequest) -> Iterator[LlamaCppRuntime]:
    runtime = LlamaCppRuntime.load(
        LoadSettings(
            str(starter_gguf), n_ctx=256, n_batch=64, n_sequences=2, n_threads=1, kv_type=request.param
        )
    )
    yield runtime
    runtime.close()


def chat(id: int, *contents: str, max_tokens: int = 8, ignore_eog: bool = False) -> Generate:
    messages = [ChatMessage("system", "You tell stories.")]
    messages += [
        ChatMessage("assistant" if index % 2 else "user", content) for index, content in enumerate(contents)
    ]
    return Generate(
        id, tuple(messages), sampling=GREEDY, max_tokens=max_tokens, ignore_eog=ignore_eog, conversation="a"
    )


def logits_of(runtime: LlamaCppRuntime, tokens: list[int]) -> np.ndarray:
    """float32 [len(tokens), n_vocab], computed from nothing; the cache is empty before and after it."""
    runtime.free(0)
    runtime.free(1)
    rows = [
        runtime.decode([Chunk(1, tokens[start : start + 64], start, Wanted.ALL)]).copy()
        for start in range(0, len(tokens), 64)
    ]
    runtime.free(1)
    return np.concatenate(rows)


def test_an_endless_answer_stays_a_text(starter: LlamaCppRuntime) -> None:
    running = Running(starter)
    finished = running.answer(chat(1, "Tell me a long story.", max_tokens=330, ignore_eog=True))
    assert len(finished.tokens) == 330
    assert len(running.evictions()) >= 2
    assert all(event.n_tokens >= 256 // 8 for event in running.evictions())
    # What it writes after the evictions is likely to a fresh look at the same tokens, too.
    held = list(running.held)
    logits = logits_of(starter, held[:-1])
    tail = logits[-30:]
    loss = np.log(np.exp(tail - tail.max(1, keepdims=True)).sum(1)) + tail.max(1)
    loss -= tail[np.arange(30), held[-30:]]
    assert loss.mean() < 1.5  # nats a token; a wrong position gives more than 5


def test_whole_turns_go_and_the_next_turn_computes_the_new(starter: LlamaCppRuntime) -> None:
    running = Running(starter)
    contents: list[str] = []
    gone: tuple[int, ...] = ()
    evicted_at: list[int] = []
    for turn in range(7):
        contents.append(f"{turn}. " + TEXT * 2)
        finished = running.answer(chat(turn, *contents))
        contents.append(
            "".join(getattr(event, "text", "") for event in running.events if hasattr(event, "n_tokens"))
        )
        assert finished.n_context <= 256
        assert finished.timings.prefill_tokens <= 70 + 40 * (turn == 0)
        events = running.evictions()
        if events:
            assert set(gone) <= set(events[-1].messages)
            gone = events[-1].messages
            evicted_at.append(turn)
    assert gone[:4] == (1, 2, 3, 4)
    assert len(gone) % 2 == 0
    text = "".join(map(starter.tokenizer.name, running.held))
    assert text.startswith("<|im_start|>system\nYou tell stories.<|im_end|>\n<|im_start|>user\n")
    assert "0. The sea" not in text
    assert "6. The sea" in text


def test_a_shifted_conversation_comes_back_as_it_was(starter: LlamaCppRuntime) -> None:
    from edgechat.engine import saving

    running = Running(starter, StateStore(2**30))
    first = running.answer(chat(1, TEXT * 5, max_tokens=230, ignore_eog=True))
    assert running.evictions()
    answer = "".join(map(starter.tokenizer.name, first.tokens))
    store, slots = running.engine._cache.saving.states, running.engine._cache.slots
    assert slots[0].tainted < 256
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "MIN_TOKENS", 100)
        running.engine._cache.release_idle()
    assert store.get("a") is not None
    assert starter.length(0) == 0
    second = running.answer(chat(2, TEXT * 5, answer, "Go on.", max_tokens=6))
    assert second.timings.prefill_tokens < 40
    restored = list(running.held)
    running = Running(starter)
    running.answer(chat(1, TEXT * 5, max_tokens=230, ignore_eog=True))
    again = running.answer(chat(2, TEXT * 5, answer, "Go on.", max_tokens=6))
    assert again.tokens == second.tokens  # the same cells, to the bit
    assert running.held == restored


def test_gemma_says_what_a_fresh_prefill_would_say(gemma_gguf: Path) -> None:
    runtime = LlamaCppRuntime.load(
        LoadSettings(str(gemma_gguf), n_ctx=768, n_batch=256, n_sequences=2, n_threads=1)
    )
    try:
        assert runtime.info.n_swa == 512
        running = Running(runtime)
        prompt = "".join(f"{i}. {TEXT}" for i in range(31))
        request = Generate(1, prompt=prompt, sampling=GREEDY, max_tokens=90, ignore_eog=True)
        assert 690 < len(runtime.tokenizer.encode(prompt)) < 767
        finished = running.answer(request)
        (event,) = running.evictions()
        held = list(running.held)
        assert held[:4] == [2, *runtime.tokenizer.encode(prompt)[:3]]
        n_new = len(held) - event.n_kept
        assert n_new > 5
        rows = logits_of(runtime, held)[event.n_kept - 1 :]
        chosen = [*held[event.n_kept :], finished.tokens[-1]]
        behind = rows.max(axis=1) - rows[np.arange(len(chosen)), chosen]
        assert behind.max() < NEAR_TIE
    finally:
        runtime.close()


def test_a_summary_stands_before_what_stays(starter_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the starter writes, a sentence of ours is taken for it: the cells must fit the tokens."""
    ours = "Anna told of a calm sea and of white houses."
    asked: list[str] = []

    def usable(text: str, *, whole: bool) -> str:
        asked.append(text)
        return ours

    monkeypatch.setattr(summary, "usable", usable)
    runtime = LlamaCppRuntime.load(
        LoadSettings(str(starter_gguf), n_ctx=512, n_batch=128, n_sequences=2, n_threads=1)
    )
    try:
        running = Running(runtime)
        contents: list[str] = []
        for turn in range(9):
            contents.append(f"{turn}. " + TEXT * 2)
            finished = running.answer(msgspec.structs.replace(chat(turn, *contents), summarize=True))
            contents.append("".join(map(runtime.tokenizer.name, finished.tokens)))
            if any(event.n_tokens for event in running.evictions()):
                break
        (event,) = running.evictions()
        assert event.summary == ours
        assert asked[0].strip()
        text = "".join(map(runtime.tokenizer.name, running.held))
        head = "<|im_start|>system\nYou tell stories.<|im_end|>\n<|im_start|>user\n" + summary.BEFORE + ours
        assert text.startswith(f"{head}{summary.AFTER}{len(event.messages) // 2}. The sea")
        held = list(running.held)
        again = msgspec.structs.replace(chat(20, *contents, "Go on."), summarize=True)
        assert running.answer(again).timings.prefill_tokens < 40
        assert running.held[: len(held)] == held
        # And a fresh look at the same tokens says the same.
        chosen = list(finished.tokens)
        n_held = len(chosen) - (held[-len(chosen) :] != chosen)  # the last one may not be computed
        rows = logits_of(runtime, held)[len(held) - n_held - 1 :][: len(chosen)]
        behind = rows.max(axis=1) - rows[np.arange(len(chosen)), chosen]
        assert behind.max() < NEAR_TIE
    finally:
        runtime.close()
