"""How much is measured: quickly, or so that the figures can be quoted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from edgechat.records import LoadSettings

Tell = Callable[[str], None]
"""Told what is being done."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of each measurement."""

    decode_tokens: int
    prefill_tokens: int
    costs_s: float
    text_tokens: int
    """Of each answer that is written with and without drafts."""
    text_rounds: int
    window_ctx: int
    window_tokens: int
    prefix_tokens: int
    prefix_runs: int
    runs: int = 5
    """Of decode and prefill: medians need five at least."""


QUICK = Sizes(
    decode_tokens=33, prefill_tokens=128, costs_s=1.0, text_tokens=32, text_rounds=1, window_ctx=256,
    window_tokens=512, prefix_tokens=250, prefix_runs=1,
)  # fmt: skip
FULL = Sizes(
    decode_tokens=257, prefill_tokens=512, costs_s=8.0, text_tokens=160, text_rounds=5, window_ctx=1024,
    window_tokens=8192, prefix_tokens=1000, prefix_runs=5,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and with which model."""

    load: LoadSettings
    """As the person's settings and options have it; each measurement changes what it must."""
    sizes: Sizes
    tell: Tell = lambda _: None


def median_ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Of neighbouring runs, so that a machine that slows down slows both."""
    return median(a / b for a, b in zip(mine, theirs, strict=True)) if mine else 0.0
