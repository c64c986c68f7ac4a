"""Speculation on llama.cpp, with the starter: greedy text but for near-ties, sampled text by chi-squared."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgechat.engine.drafting import Drafter
from edgechat.engine.engine import Engine
from edgechat.engine.judging import judge_rows
from edgechat.engine.process.messages import Event, Finished, Generate
from edgechat.engine.sampling import Sampler
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.records import LoadSettings, SamplingSettings
from edgechat.runtimes.base import Chunk, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from tests.edgechat.engine.drafts import Always, cost
from tests.oracles.speculation import chi_squared_p, count

pytestmark = pytest.mark.timeout(900)  # other programs may have the cores

NEAR_TIE = 0.15
"""Logits that a batch of another size may turn around: the model's weights have 4 bits, its activations 8."""
PROMPT = "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat"


def load(path: Path) -> LlamaCppRuntime:
    return LlamaCppRuntime.load(LoadSettings(str(path), n_ctx=512, n_batch=64, n_sequences=2, n_threads=1))


@pytest.fixture(scope="module")
def runtime(starter_gguf: Path) -> Iterator[LlamaCppRuntime]:
    runtime = load(starter_gguf)
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def second(starter_gguf: Path) -> Iterator[LlamaCppRuntime]:
    """The same model as a draft model."""
    runtime = load(starter_gguf)
    yield runtime
    runtime.close()


def answer(runtime: LlamaCppRuntime, drafter: Drafter | None, n: int = 24) -> Finished:
    for sequence in range(runtime.n_sequences):
        runtime.free(sequence)
    events: list[Event] = []
    engine = Engine(runtime, None, events.append, drafter=drafter)
    greedy = SamplingSettings(temperature=0)
    engine.submit(Generate(1, prompt=PROMPT, sampling=greedy, max_tokens=n, ignore_eog=True))
    while engine.step():
        pass
    last = events[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("proposer", ["ngrams", "model", "both"])
def test_greedy_text_is_plain_greedy_text_but_for_near_ties(
    runtime: LlamaCppRuntime, second: LlamaCppRuntime, proposer: str
) -> None:
    for sequence in range(2):
        second.free(sequence)
    model = None if proposer == "ngrams" else DraftModel(second, runtime.tokenizer.n_vocab, 0.01)
    drafter = Drafter(cost(), ngrams=proposer != "model", model=model, decides=lambda: Always(longest=5))
    plain, drafted = answer(runtime, None), answer(runtime, drafter)
    speculation = drafted.speculation
    assert speculation is not None
    assert speculation.accepted > 10
    assert speculation.steps < 20
    differs = next(
        (i for i, (a, b) in enumerate(zip(plain.tokens, drafted.tokens, strict=True)) if a != b), None
    )
    if differs is None:
        return
    runtime.free(0)
    prompt = runtime.tokenizer.encode(PROMPT)
    tokens = [*prompt, *plain.tokens[:differs]]
    row = runtime.decode([Chunk(0, tokens[-64:], 0)])[0] if len(tokens) <= 64 else _last_row(runtime, tokens)
    assert abs(row[plain.tokens[differs]] - row[drafted.tokens[differs]]) < NEAR_TIE


def _last_row(runtime: LlamaCppRuntime, tokens: list[int]) -> np.ndarray:
    for at in range(0, len(tokens), 64):
        rows = runtime.decode([Chunk(0, tokens[at : at + 64], at)])
    return rows[0]


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("temperature", [0.8, 1.5])
def test_draws_at_a_fixed_prefix_have_the_models_distribution(
    runtime: LlamaCppRuntime, temperature: float
) -> None:
    """p after one text, q after another: 20,000 drafts from q leave p's distribution."""
    sampling = SamplingSettings(temperature=temperature, top_k=20)
    target, drafter = Sampler(sampling), Sampler(sampling)
    rows = []
    for text in ("She opened the door and saw a", "He opened the box and found an old"):
        runtime.free(0)
        rows.append(runtime.decode([Chunk(0, runtime.tokenizer.encode(text), 0, Wanted.LAST)])[0].copy())
    p, q = target.distribution(rows[0]), drafter.distribution(rows[1])
    expected = dict(zip(p.ids.tolist(), p.probabilities.tolist(), strict=True))
    seen, stood = [], 0
    both = np.stack([rows[0], rows[0]])
    for _ in range(20_000):
        draft = Draft(q.draw(drafter.random.random()), Source.MODEL, 0.5, q)
        verdict = judge_rows(target, both, [draft], lambda token: True)
        seen.append(verdict.tokens[0])
        stood += verdict.n_accepted
    assert chi_squared_p(count(seen), expected) > 0.01
    q_of = dict(zip(q.ids.tolist(), q.probabilities.tolist(), strict=True))
    stands = sum(min(probability, q_of.get(token, 0.0)) for token, probability in expected.items())
    assert stood / 20_000 == pytest.approx(stands, abs=0.02)
