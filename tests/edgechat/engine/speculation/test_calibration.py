"""From confidence to acceptance."""

import random

import pytest

from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.proposal import Draft, Source


def draft(confidence: float, source: Source = Source.MODEL, token: int = 0) -> Draft:
    return Draft(token, source, confidence)


def teach(calibration: Calibration, rng: random.Random, n: int, truth: dict[float, float]) -> None:
    for _ in range(n):
        for confidence, p in truth.items():
            calibration.learn([draft(confidence)], int(rng.random() < p), 1)


def test_begins_with_the_proposers_own_word() -> None:
    calibration = Calibration()
    assert calibration.acceptance(draft(0.3), 0) == pytest.approx(0.3)
    assert calibration.acceptance(draft(0.9), 5) == pytest.approx(0.9)


def test_learns_what_confidence_means() -> None:
    calibration = Calibration()
    truth = {0.15: 0.05, 0.55: 0.3, 0.85: 0.8, 0.99: 0.97}
    teach(calibration, random.Random(0), 400, truth)
    for confidence, p in truth.items():
        assert calibration.acceptance(draft(confidence), 0) == pytest.approx(p, abs=0.12)
    # Places that were never seen take the shift of the log-odds over: all was overrated here.
    assert calibration.acceptance(draft(0.55), 7) < 0.5


def test_forgets_when_the_text_changes() -> None:
    calibration = Calibration()
    rng = random.Random(1)
    teach(calibration, rng, 500, {0.7: 0.95})
    assert calibration.acceptance(draft(0.7), 0) > 0.85
    teach(calibration, rng, 25, {0.7: 0.05})
    assert calibration.acceptance(draft(0.7), 0) < 0.4
    teach(calibration, rng, 25, {0.7: 0.95})
    assert calibration.acceptance(draft(0.7), 0) > 0.6


def test_sources_and_places_are_apart() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.learn([draft(0.6), draft(0.6), draft(0.6)], 1, 2)  # the first stands, the second falls
        calibration.learn([draft(0.6, Source.NGRAM)], 0, 1)
    assert calibration.acceptance(draft(0.6), 0) > 0.85
    assert calibration.acceptance(draft(0.6), 1) < 0.2
    assert calibration.acceptance(draft(0.6, Source.NGRAM), 0) < 0.1
    assert calibration.typical(Source.MODEL, range(1))[0] > 0.85
    assert calibration.mean(Source.NGRAM) < 0.05
    assert calibration.mean(Source.HEADS) == 0.6


def test_drafts_from_words_are_alike_at_all_places() -> None:
    """A match's length is their confidence: what was learnt at one place holds at the others."""
    calibration = Calibration()
    for _ in range(50):
        calibration.learn([draft(0.6, Source.NGRAM)], 0, 1)
    assert calibration.acceptance(draft(0.6, Source.NGRAM), 7) == pytest.approx(
        calibration.acceptance(draft(0.6, Source.NGRAM), 0)
    )


def test_a_new_answer_believes_less_firmly() -> None:
    """Nothing is changed by its beginning, but it takes fewer drafts to."""
    old, new = Calibration(), Calibration()
    for calibration in (old, new):
        for _ in range(100):
            calibration.learn([draft(0.6)], 1, 1)
    before = new.acceptance(draft(0.6), 0)
    new.begin()
    assert 0.9 < new.acceptance(draft(0.6), 0) <= before
    for calibration in (old, new):
        for _ in range(4):
            calibration.learn([draft(0.6)], 0, 1)
    assert new.acceptance(draft(0.6), 0) < old.acceptance(draft(0.6), 0) - 0.05
