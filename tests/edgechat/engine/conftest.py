"""Fixtures of the engine's tests."""

import itertools

import numpy as np
import pytest


@pytest.fixture
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samplers without a seed draw in each run what they drew in the last.

    One in a hundred right samplers has p <= 0.01: drawn anew each time, it would fail for no fault at all.
    """
    generator, seeds = np.random.PCG64, itertools.count(1)
    monkeypatch.setattr(np.random, "PCG64", lambda seed: generator(next(seeds) if seed is None else seed))
