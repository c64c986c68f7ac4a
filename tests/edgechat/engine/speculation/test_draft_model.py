"""The draft model: what it has read is what it should have, and it never reads more than it must."""

import random

import numpy as np
import pytest

from edgechat.engine.speculation.draft_model import (
    MOST_LAG,
    RECENT,
    SINKS,
    DraftModel,
    chooser,
    likeliest,
)
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.records import Capabilities, SamplingSettings
from edgechat.runtimes.base import DecodeFailed
from tests.edgechat.scripted_runtime import ALL_CAPABLE, ScriptedRuntime, toy_logits

N_VOCAB = 272


def model(n_ctx: int = 4096, can: Capabilities = ALL_CAPABLE, n_sequences: int = 2) -> DraftModel:
    runtime = ScriptedRuntime(n_ctx=n_ctx, n_batch=64, n_sequences=n_sequences, can=can)
    return DraftModel(runtime, N_VOCAB)


def read(of: DraftModel, sequence: int = 0) -> list[int]:
    runtime = of.runtime
    assert isinstance(runtime, ScriptedRuntime)
    return runtime.tokens(sequence)


def expected(tokens: list[int]) -> int:
    return int(toy_logits(tokens, N_VOCAB).argmax())


def test_drafts_what_the_model_would_say() -> None:
    ours = model()
    tokens = list(range(40, 60))
    for _ in range(5):
        draft = ours.draft(0, tokens, likeliest)
        assert draft is not None
        assert draft.token == expected(tokens)
        assert draft.source is Source.MODEL
        row = toy_logits(tokens, N_VOCAB).astype(np.float64)
        assert draft.confidence == pytest.approx(np.exp(row.max()) / np.exp(row).sum(), rel=1e-4)
        tokens.append(draft.token)
        assert ours.lag(0, tokens) == 1
    assert ours.runtime.n_decoded == 24  # type: ignore[attr-defined]


def test_follows_whatever_the_target_does() -> None:
    """Drafts that fell, other answers, edits: what was read is always what the next draft is drawn from."""
    rng = random.Random(0)
    ours = model()
    texts = [[rng.randrange(32, 120) for _ in range(30)] for _ in range(2)]
    for _ in range(300):
        sequence = rng.randrange(2)
        tokens = texts[sequence]
        drafts: list[int] = []
        for _ in range(rng.randrange(4)):
            draft = ours.draft(sequence, [*tokens, *drafts], likeliest)
            assert draft is not None
            assert read(ours, sequence) == [*tokens, *drafts]
            assert draft.token == expected([*tokens, *drafts])
            drafts.append(draft.token)
        tokens += drafts[: rng.randint(0, len(drafts))]
        tokens.append(rng.randrange(32, 120))
        if rng.random() < 0.05:
            del tokens[rng.randrange(5, len(tokens)) :]


def test_a_late_model_reads_the_beginning_and_the_end() -> None:
    ours = model()
    rng = random.Random(1)
    tokens = [rng.randrange(32, 120) for _ in range(2000)]
    assert ours.lag(0, tokens) == SINKS + RECENT
    draft = ours.draft(0, tokens, likeliest)
    seen = [*tokens[:SINKS], *tokens[-RECENT:]]
    assert read(ours) == seen
    assert draft is not None
    assert draft.token == expected(seen)
    tokens += [50, 51]
    assert ours.lag(0, tokens) == 2
    ours.draft(0, tokens, likeliest)
    assert read(ours) == [*seen, 50, 51]
    # Left alone for long, it begins anew.
    tokens += [rng.randrange(32, 120) for _ in range(MOST_LAG + 1)]
    ours.draft(0, tokens, likeliest)
    assert read(ours) == [*tokens[:SINKS], *tokens[-RECENT:]]


@pytest.mark.parametrize("n_prompt", [100, 1000])
@pytest.mark.parametrize("ranges", [[(10, 40)], [(10, 20), (30, 45)], [(5, 900)], [(700, 750), (800, 900)]])
def test_evictions_are_mirrored(n_prompt: int, ranges: list[tuple[int, int]]) -> None:
    ranges = [(start, stop) for start, stop in ranges if stop < n_prompt]
    ours = model()
    rng = random.Random(2)
    tokens = [rng.randrange(32, 120) for _ in range(n_prompt)]
    ours.draft(0, tokens, likeliest)
    before = read(ours)
    n_read = ours.runtime.n_decoded  # type: ignore[attr-defined]
    ours.evicted(0, ranges)
    for start, stop in reversed(ranges):
        del tokens[start:stop]
    tokens += [60, 61]
    assert ours.lag(0, tokens) == 2
    draft = ours.draft(0, tokens, likeliest)
    assert draft is not None
    held = read(ours)
    assert held[:SINKS] == tokens[:SINKS]
    assert held[SINKS:] == tokens[len(tokens) - len(held) + SINKS :]
    assert ours.runtime.n_decoded == n_read + 2  # type: ignore[attr-defined]
    assert len(held) <= len(before) + 2


def test_where_it_can_not_shift_it_reads_again() -> None:
    ours = model(can=Capabilities(shift=False, rollback=-1, fork=True))
    tokens = list(range(32, 132))
    ours.draft(0, tokens, likeliest)
    ours.evicted(0, [(10, 40)])
    del tokens[10:40]
    assert ours.lag(0, tokens) == len(tokens)
    draft = ours.draft(0, tokens, likeliest)
    assert draft is not None
    assert draft.token == expected(tokens)


def test_where_it_can_not_go_back_it_reads_again() -> None:
    ours = model(can=Capabilities(shift=False, rollback=0, fork=False))
    tokens = list(range(32, 62))
    ours.draft(0, tokens, likeliest)
    tokens[-1] = 99
    draft = ours.draft(0, tokens, likeliest)
    assert draft is not None
    assert draft.token == expected(tokens)


def test_makes_room_for_itself() -> None:
    ours = model(n_ctx=100)
    ours.draft(0, list(range(32, 92)), likeliest)
    draft = ours.draft(1, list(range(42, 102)), likeliest)
    assert draft is not None
    assert read(ours, 0) == []
    assert ours.draft(1, [40] * 150, likeliest) is None  # more than it can hold
    assert read(ours, 1) == []
    assert not ours.trouble


def test_a_failure_ends_its_drafting() -> None:
    ours = model()

    def fail(batch: object) -> None:
        raise DecodeFailed("out of memory")

    assert ours.draft(0, [40, 41], likeliest) is not None
    ours.runtime.on_decode = fail  # type: ignore[attr-defined]
    assert ours.draft(0, [40, 41, 42], likeliest) is None
    assert "out of memory" in ours.trouble
    assert ours.draft(0, [40, 41, 42], likeliest) is None


def test_never_drafts_what_the_target_lacks() -> None:
    """Vocabularies are padded: what lies beyond the target's is left out before a draft is drawn."""
    runtime = ScriptedRuntime(logits=lambda tokens, n_vocab: np.arange(n_vocab, dtype=np.float32))
    ours = DraftModel(runtime, 200)
    draft = ours.draft(0, [40, 41], likeliest)
    assert draft is not None
    assert draft.token == 199
    assert ours.draft(0, [40, 300], likeliest) is None  # and reads nothing that it lacks itself


def test_drawn_drafts_bring_what_they_were_drawn_from() -> None:
    choose = chooser(SamplingSettings(temperature=0.9, top_k=5, repetition_penalty=1.3))
    row = toy_logits([1, 2], N_VOCAB)
    draft = choose(row)
    q = draft.drawn_from
    assert q is not None
    assert len(q.ids) <= 5
    assert draft.token in q.ids
    assert draft.confidence == pytest.approx(float(q.probabilities[q.ids == draft.token][0]))


@pytest.mark.parametrize(
    "sampling", [SamplingSettings(temperature=0.9, seed=1), SamplingSettings(temperature=0)]
)
def test_seeded_and_cold_answers_get_the_likeliest(sampling: SamplingSettings) -> None:
    row = toy_logits([1, 2], N_VOCAB)
    assert chooser(sampling)(row) == Draft(int(row.argmax()), Source.MODEL, likeliest(row).confidence)


def test_learns_how_long_reading_takes() -> None:
    ours = DraftModel(ScriptedRuntime(), N_VOCAB, step_s=0.01)
    for _ in range(20):
        ours.learn_reading(100, 0.21)
    assert ours.read_s == pytest.approx(0.002, rel=0.01)
