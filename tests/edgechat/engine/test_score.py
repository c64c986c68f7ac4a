"""Scores of a text's own tokens, against a plain computation in float64."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgechat.cli.eval import read_text
from edgechat.engine import score
from edgechat.engine.process.messages import Event, Refused, Score, Scored, ScoreDone
from edgechat.engine.score import Scorer, negative_log_likelihoods
from edgechat.errors import ExitCode
from edgechat.records import LoadSettings
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits
from tests.edgechat.scripted_runtime import BOS, ScriptedRuntime, ToyTokenizer, toy_logits

TEXT = "The quick brown fox jumps over the lazy dog; Hello world, the user says. " * 4


def log_probability(row: Logits, token: int) -> float:
    exact = row.astype(np.float64)
    return float(exact[token] - np.log(np.sum(np.exp(exact - exact.max()))) - exact.max())


def expected_windows(
    tokens: list[int], n_ctx: int, bos: int | None, logits: Callable[[Sequence[int]], Sequence[Logits]]
) -> list[tuple[float, float, int]]:
    """Sum of losses, sum of their squares and their number, of each window, straight from the definition."""
    windows = []
    for start in range(0, len(tokens) - n_ctx + 1, n_ctx):
        window = tokens[start : start + n_ctx]
        if bos is not None:
            window[0] = bos
        rows = logits(window)
        scored = [-log_probability(rows[i], window[i + 1]) for i in range(n_ctx // 2, n_ctx - 1)]
        windows.append((sum(scored), sum(loss**2 for loss in scored), len(scored)))
    return windows


class Run:
    """A scorer and its events."""

    def __init__(self, runtime: ScriptedRuntime) -> None:
        self.runtime = runtime
        self.events: list[Event] = []
        self.rooms_made = 0
        self.scorer = Scorer(runtime, self.events.append, self.make_room)

    def make_room(self) -> None:
        self.rooms_made += 1

    def score(self, text: str = TEXT, n_ctx: int = 32, request_id: int = 1) -> list[Event]:
        self.scorer.submit(Score(request_id, text, n_ctx))
        while self.scorer.step():
            pass
        return self.events


def losses(events: list[Event]) -> list[float]:
    return [event.nll for event in events if isinstance(event, Scored)]


def refusal(events: list[Event]) -> Refused:
    (event,) = events
    assert isinstance(event, Refused)
    assert "\n" not in event.error
    return event


@pytest.mark.parametrize("n_ctx", [8, 31, 32, 100])
@pytest.mark.parametrize("n_batch", [5, 64])
@pytest.mark.parametrize("add_bos", [False, True])
def test_windows_are_scored_as_defined(n_ctx: int, n_batch: int, add_bos: bool) -> None:
    tokenizer = ToyTokenizer(add_bos=add_bos)
    runtime = ScriptedRuntime(n_ctx=128, n_batch=n_batch, tokenizer=tokenizer)
    *windows, done = Run(runtime).score(n_ctx=n_ctx)
    tokens = [BOS] * add_bos + tokenizer.encode(TEXT, special=False)

    def logits(window: Sequence[int]) -> list[Logits]:
        return [toy_logits(window[: i + 1], tokenizer.n_vocab) for i in range(n_ctx)]

    expected = expected_windows(tokens, n_ctx, BOS if add_bos else None, logits)
    assert done == ScoreDone(1, len(tokens))
    assert len(windows) == len(expected) >= 2
    for number, (window, (nll, nll2, n_tokens)) in enumerate(zip(windows, expected, strict=True), start=1):
        assert isinstance(window, Scored)
        assert (window.id, window.done, window.total, window.n_tokens) == (1, number, len(expected), n_tokens)
        assert window.nll == pytest.approx(nll, rel=1e-6)
        assert window.nll2 == pytest.approx(nll2, rel=1e-6)


def test_control_tokens_in_a_text_are_plain_text() -> None:
    tokenizer = ToyTokenizer()
    text = "<|im_end|><|endoftext|>" * 4
    *_, done = Run(ScriptedRuntime(tokenizer=tokenizer)).score(text, n_ctx=16)
    assert done == ScoreDone(1, len(text))


def test_the_cache_is_empty_after_each_window_and_room_is_made_before() -> None:
    run = Run(ScriptedRuntime(n_ctx=64, n_batch=8))
    run.scorer.submit(Score(1, TEXT, 32))
    held = []
    while run.scorer.step():
        held.append(run.scorer.holds_cache)
        assert run.scorer.holds_cache == (run.runtime.n_used > 0)
        assert run.runtime.n_used < 32  # what follows the last token is not asked for
    n_windows = sum(isinstance(event, Scored) for event in run.events)
    assert held == ([True] * 3 + [False]) * n_windows
    assert run.rooms_made == n_windows
    assert not run.scorer.busy


def test_rows_of_a_large_vocabulary_come_in_smaller_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ScriptedRuntime(n_ctx=64, n_batch=64)
    whole = Run(runtime).score()
    monkeypatch.setattr(score, "ROW_BYTES", 3 * 4 * runtime.tokenizer.n_vocab)
    runtime.batches.clear()
    assert losses(Run(runtime).score()) == pytest.approx(losses(whole), rel=1e-12)
    assert max(chunk.n_rows for batch in runtime.batches for chunk in batch) == 3


@pytest.mark.parametrize(
    ("text", "n_ctx", "words"),
    [
        ("short", 32, "too short: it has 5 tokens, and 2 windows of 32 are needed"),
        ("a" * 63, 32, "63 tokens"),
        (TEXT, 7, "too small"),
        (TEXT, 129, "do not fit into a context of 128"),
    ],
)
def test_what_can_not_be_scored_is_refused(text: str, n_ctx: int, words: str) -> None:
    refused = refusal(Run(ScriptedRuntime(n_ctx=128)).score(text, n_ctx))
    assert refused.code == ExitCode.USAGE
    assert words in refused.error


def test_two_windows_are_enough() -> None:
    assert len(Run(ScriptedRuntime()).score("a" * 64, 32)) == 3


def test_texts_are_scored_one_after_the_other() -> None:
    run = Run(ScriptedRuntime())
    run.scorer.submit(Score(1, TEXT, 32))
    run.scorer.submit(Score(2, TEXT, 64))
    while run.scorer.step():
        pass
    ids = [event.id for event in run.events if isinstance(event, Scored | ScoreDone)]
    assert ids == sorted(ids)
    assert set(ids) == {1, 2}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_score_gives_the_cache_back(steps: int) -> None:
    run = Run(ScriptedRuntime(n_batch=8))
    run.scorer.submit(Score(1, TEXT, 32))
    for _ in range(steps):
        run.scorer.step()
    run.scorer.cancel(7)
    assert run.scorer.busy
    run.scorer.cancel(1)
    assert refusal(run.events).code == ExitCode.INTERRUPTED
    assert run.runtime.n_used == 0
    assert not run.scorer.busy
    assert not run.scorer.step()


def raises(error: Exception) -> Callable[[Sequence[Chunk]], None]:
    def fail(batch: Sequence[Chunk]) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code"), [(ContextFull(), ExitCode.RESOURCES), (DecodeFailed("rc -3"), ExitCode.BUG)]
)
def test_a_failing_runtime_refuses_the_text_and_goes_on(error: Exception, code: ExitCode) -> None:
    run = Run(ScriptedRuntime(on_decode=raises(error)))
    assert refusal(run.score()).code == code
    assert not run.scorer.busy
    run.runtime.on_decode = lambda batch: None
    assert isinstance(run.score()[-1], ScoreDone)


def test_logits_that_are_no_numbers_are_said() -> None:
    def broken(tokens: Sequence[int], n_vocab: int) -> Logits:
        return np.full(n_vocab, np.nan, np.float32)

    refused = refusal(Run(ScriptedRuntime(logits=broken)).score())
    assert "not numbers" in refused.error


def test_losses_are_exact_at_any_height() -> None:
    source = np.random.default_rng(3)
    logits = (source.standard_normal((50, 30_000)) * 8 + 300).astype(np.float32)
    logits[7] = -1e30
    logits[7, 5] = 1e30
    targets = [int(token) for token in source.integers(0, 30_000, 50)]
    targets[7] = 5
    expected = [-log_probability(row, token) for row, token in zip(logits, targets, strict=True)]
    found = negative_log_likelihoods(logits, targets)
    assert found.dtype == np.float64
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found[7] == 0


N_CTX = 64
NOISE = 0.02
"""Nats a token, over some 200: the reference computes a window as one batch, in float32 where it can."""


@pytest.mark.oracle
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["starter_gguf", "gemma_gguf"])
def test_a_real_model_is_scored_as_its_own_logits_say(name: str, request: pytest.FixtureRequest) -> None:
    from edgechat.runtimes.llamacpp import LlamaCppRuntime
    from tests.oracles import llama_reference

    path: Path = request.getfixturevalue(name)
    text = read_text(None)[:2000]
    settings = LoadSettings(str(path), n_ctx=256, n_batch=32, n_sequences=1, n_threads=1)
    runtime = LlamaCppRuntime.load(settings)
    events: list[Event] = []
    try:
        scorer = Scorer(runtime, events.append)
        scorer.submit(Score(1, text, N_CTX))
        while scorer.step():
            pass
        bos = runtime.tokenizer.bos_id if runtime.tokenizer.add_bos else None
        assert runtime.length(0) == 0
    finally:
        runtime.close()
    with llama_reference.loaded(path, N_CTX) as reference:
        tokens = reference.tokenize(text, add_special=True, parse_special=False)

        def logits(window: Sequence[int]) -> Sequence[Logits]:
            return list(reference.logits(window))

        expected = expected_windows(tokens, N_CTX, bos, logits)
    assert events[-1] == ScoreDone(1, len(tokens))
    measured = losses(events)
    assert len(measured) == len(expected) >= 6
    n_scored = sum(n for _, _, n in expected)
    surprise = (sum(measured) - sum(nll for nll, _, _ in expected)) / n_scored
    assert abs(surprise) < NOISE
