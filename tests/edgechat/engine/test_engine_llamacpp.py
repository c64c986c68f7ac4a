"""The engine on llama.cpp, with the starter model: the same tokens as a bare loop of decodes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgechat.engine.engine import Engine
from edgechat.engine.process.messages import Delta, Event, Finished, Generate
from edgechat.engine.rendering import ChatRenderer, PlainRenderer
from edgechat.records import FinishReason, LoadSettings, SamplingSettings
from edgechat.runtimes.base import Chunk, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from models.chat import ChatMessage
from models.chat_template import ChatTemplate

pytestmark = pytest.mark.timeout(900)  # other programs may have the cores

GREEDY = SamplingSettings(temperature=0)
NEAR_TIE = 0.15
"""Logits that a batch of another size may turn around: the model's weights have 4 bits, its activations 8."""
QUESTIONS = (
    "What is the capital of France? Answer with one word.",
    "Write a sentence about the sea. " + "It should be long and calm. " * 6,
    "Zähle bis drei: eins,",
)


@pytest.fixture(scope="module")
def runtime(starter_gguf: Path) -> Iterator[LlamaCppRuntime]:
    runtime = LlamaCppRuntime.load(
        LoadSettings(str(starter_gguf), n_ctx=1024, n_batch=64, n_sequences=4, n_threads=1)
    )
    yield runtime
    runtime.close()


class Asked:
    """An engine and its events."""

    def __init__(self, runtime: LlamaCppRuntime) -> None:
        for sequence in range(runtime.n_sequences):
            runtime.free(sequence)
        self.runtime = runtime
        source = runtime.info.chat_template
        template = None if source is None else ChatTemplate(source, bos="<|im_start|>", eos="<|im_end|>")
        self.renderer: ChatRenderer = template or PlainRenderer()
        self.events: list[Event] = []
        self.engine = Engine(runtime, template, self.events.append)

    def submit(self, id: int, *contents: str, max_tokens: int = 12, conversation: str = "") -> None:
        messages = tuple(
            ChatMessage("assistant" if index % 2 else "user", content)
            for index, content in enumerate(contents)
        )
        self.engine.submit(
            Generate(id, messages, sampling=GREEDY, max_tokens=max_tokens, conversation=conversation)
        )

    def run(self) -> None:
        while self.engine.step():
            pass

    def finished(self, id: int) -> Finished:
        (last,) = [event for event in self.events if isinstance(event, Finished) and event.id == id]
        return last

    def text(self, id: int) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta) and event.id == id)


def prompt_of(asked: Asked, *contents: str) -> list[int]:
    messages = [
        ChatMessage("assistant" if index % 2 else "user", content) for index, content in enumerate(contents)
    ]
    tokenizer = asked.runtime.tokenizer
    tokens = tokenizer.encode(asked.renderer.render(messages).text)
    return [tokenizer.bos_id, *tokens] if tokenizer.add_bos and tokenizer.bos_id is not None else tokens


def assert_greedy(runtime: LlamaCppRuntime, prompt: list[int], answer: tuple[int, ...]) -> None:
    """Each token of `answer` is the likeliest after what came before, or in a near-tie with it."""
    runtime.free(0)
    tokens = [*prompt, *answer[:-1]]
    rows = []
    for start in range(0, len(tokens), 64):
        rows.append(runtime.decode([Chunk(0, tokens[start : start + 64], start, Wanted.ALL)]).copy())
    logits = np.concatenate(rows)[len(prompt) - 1 :]  # [answer, n_vocab]
    behind = logits.max(axis=1) - logits[np.arange(len(answer)), list(answer)]
    assert behind.max() < NEAR_TIE
    runtime.free(0)


def test_answers_together_are_as_answers_alone(runtime: LlamaCppRuntime) -> None:
    alone = Asked(runtime)
    for id, question in enumerate(QUESTIONS):
        alone.submit(id, question)
        alone.run()
    together = Asked(runtime)
    for id, question in enumerate(QUESTIONS):
        together.submit(id, question)
    together.run()
    for asked in (alone, together):
        for id, question in enumerate(QUESTIONS):
            assert_greedy(runtime, prompt_of(asked, question), asked.finished(id).tokens)
    assert "Paris" in together.text(0)
    assert together.finished(0).reason == FinishReason.STOP


def test_the_next_turn_computes_only_what_is_new(runtime: LlamaCppRuntime) -> None:
    asked = Asked(runtime)
    asked.submit(1, QUESTIONS[0], conversation="a")
    asked.run()
    first = asked.finished(1)
    asked.submit(2, QUESTIONS[0], asked.text(1), "And of Italy?", conversation="a")
    asked.run()
    timings = asked.finished(2).timings
    assert timings.cached_tokens == first.n_context
    prompt = prompt_of(asked, QUESTIONS[0], asked.text(1), "And of Italy?")
    assert timings.prefill_tokens == len(prompt) - first.n_context
    assert_greedy(runtime, prompt, asked.finished(2).tokens)


def test_the_same_seed_gives_the_same_text(runtime: LlamaCppRuntime) -> None:
    texts = []
    for seed in (1, 1, 2):
        asked = Asked(runtime)
        sampling = SamplingSettings(seed=seed, temperature=1.2)
        asked.engine.submit(Generate(1, prompt="Once upon a time", sampling=sampling, max_tokens=8))
        asked.run()
        texts.append(asked.text(1))
    assert texts[0] == texts[1] != texts[2]


def test_a_base_model_continues_a_transcript(gemma_gguf: Path) -> None:
    runtime = LlamaCppRuntime.load(
        LoadSettings(str(gemma_gguf), n_ctx=512, n_batch=64, n_sequences=2, n_threads=1)
    )
    assert runtime.tokenizer.add_bos
    asked = Asked(runtime)
    asked.submit(1, "What is the capital of France?", conversation="a", max_tokens=16)
    asked.run()
    first = asked.finished(1)
    assert first.reason == FinishReason.STOP  # at "\nUser:"
    assert asked.text(1).strip()
    assert "User:" not in asked.text(1)
    assert_greedy(runtime, prompt_of(asked, "What is the capital of France?"), first.tokens)
    asked = Asked(runtime)
    asked.submit(1, "What is the capital of France?", conversation="a", max_tokens=16)
    asked.run()
    asked.submit(2, "What is the capital of France?", asked.text(1), "And of Italy?", conversation="a")
    asked.run()
    # The "\nUser:" that ended the answer was generated, and is the head of the next question.
    assert asked.finished(2).timings.cached_tokens >= first.timings.prefill_tokens + len(first.tokens)
    assert asked.text(2)
    runtime.close()
