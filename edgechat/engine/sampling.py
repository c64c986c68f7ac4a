"""From a row of logits to the next token.

The steps and their order are llama.cpp's: logit bias, penalties, top-k, top-p, min-p, temperature. The
first two change logits; top-k, top-p and min-p each keep a beginning of the list of candidates sorted by
logit, so the shortest of the three decides; temperature comes last and only shapes what is left.

Rows are long (262,144 for Gemma) and the answer waits: no step sorts a whole row.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgechat.records import SamplingSettings

Row = npt.NDArray[np.float32]
"""Logits of one position, [n_vocab]."""
Ids = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

_GROUPS = 1024
_NUCLEUS = 256
_BINS = 1024
_MANY = 4096
"""More candidates than this are exponentiated in float32, which numpy does ten times faster."""


class BadLogits(Exception):
    """The row has NaN or infinite logits: no token can be drawn from it."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What the next token is drawn from: exact speculative sampling compares two of these."""

    ids: Ids
    """Candidates, [n]; likeliest first, except where nothing was cut off."""
    probabilities: Reals
    """[n], summing to 1."""

    def draw(self, uniform: float) -> int:
        """The token at `uniform` (0 <= uniform < 1) of the cumulated probabilities."""
        probabilities, ids = self.probabilities, self.ids
        if len(ids) > _MANY:  # first the block, then the place in it
            blocks = np.add.reduceat(probabilities, np.arange(0, len(ids), _GROUPS)).cumsum()
            block = min(int(blocks.searchsorted(uniform * blocks[-1], side="right")), len(blocks) - 1)
            start = blocks[block - 1] if block else 0.0
            uniform = (uniform * blocks[-1] - start) / (blocks[block] - start)
            part = slice(block * _GROUPS, (block + 1) * _GROUPS)
            probabilities, ids = probabilities[part], ids[part]
        cumulated = probabilities.cumsum()
        index = int(cumulated.searchsorted(uniform * cumulated[-1], side="right"))
        return int(ids[min(index, len(ids) - 1)])

    def probability(self, token: int) -> float:
        """Probability of `token`; 0 where it was cut off."""
        return float(self.probabilities[self.ids == token].sum())


class LogitStep(Protocol):
    """A change to the logits before candidates are chosen."""

    def apply(self, row: Row) -> None:
        """Change `row` in place."""
        ...

    def accept(self, token: int) -> None:
        """Learn that `token` now belongs to the text."""
        ...


class Penalties:
    """Makes the last tokens less likely: repetition (CTRL, Keskar et al. 2019), presence and frequency."""

    def __init__(self, settings: SamplingSettings, recent: Sequence[int] = ()) -> None:
        """Look at the last `settings.penalty_last_n` tokens, of which `recent` is the past."""
        self._repetition = np.float32(settings.repetition_penalty)
        self._presence = np.float32(settings.presence_penalty)
        self._frequency = np.float32(settings.frequency_penalty)
        size = settings.penalty_last_n
        self._window: deque[int] = deque(recent[-size:] if size else (), maxlen=size)
        self._counts = Counter(self._window)

    def apply(self, row: Row) -> None:
        """Change `row` in place."""
        if not self._counts:
            return
        ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        logits = row[ids]
        logits = np.where(logits <= 0, logits * self._repetition, logits / self._repetition)
        row[ids] = logits - counts * self._frequency - self._presence

    def accept(self, token: int) -> None:
        """Move the window on by one token."""
        window = self._window
        if not window.maxlen:
            return
        if len(window) == window.maxlen:
            oldest = window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        window.append(token)
        self._counts[token] += 1


def penalises(settings: SamplingSettings) -> bool:
    """Whether the settings ask for any penalty."""
    return settings.penalty_last_n > 0 and (
        settings.repetition_penalty != 1 or settings.presence_penalty != 0 or settings.frequency_penalty != 0
    )


class Sampler:
    """Draws the tokens of one answer. It owns its random numbers, so other answers don't change them."""

    def __init__(
        self, settings: SamplingSettings, recent: Sequence[int] = (), steps: Sequence[LogitStep] = ()
    ) -> None:
        """Draw as `settings` say.

        Args:
            settings: how.
            recent: the text so far, for the penalties.
            steps: further changes to the logits, applied first.
        """
        self.settings = settings
        self.random = np.random.Generator(np.random.PCG64(settings.seed))
        self.steps = list(steps)
        if penalises(settings):
            self.steps.append(Penalties(settings, recent))

    def sample(self, row: Row) -> int:
        """The next token, which `accept` must then be told of if it is kept.

        Args:
            row: float32 [n_vocab]; not changed.

        Raises:
            BadLogits: the row has NaN or infinite logits.
        """
        if self.settings.temperature == 0:
            return _likeliest(self._changed(row))
        return self.distribution(row).draw(self.random.random())

    def distribution(self, row: Row) -> Distribution:
        """What `sample` draws from.

        Args:
            row: float32 [n_vocab]; not changed.

        Raises:
            BadLogits: the row has NaN or infinite logits.
        """
        row = self._changed(row)
        settings = self.settings
        if settings.temperature == 0:
            return Distribution(np.array([_likeliest(row)], dtype=np.int64), np.ones(1))
        ids = _candidates(row, settings.top_k, settings.top_p, settings.min_p)
        logits = row[ids]
        if len(ids) <= _MANY:
            logits = logits.astype(np.float64)
        weights = np.exp((logits - logits.max()) / settings.temperature).astype(np.float64)
        return Distribution(ids, weights / weights.sum())

    def accept(self, token: int) -> None:
        """Learn that `token` now belongs to the text."""
        for step in self.steps:
            step.accept(token)

    def _changed(self, row: Row) -> Row:
        if not self.steps:
            return row
        row = row.copy()  # the runtime's memory is not ours to write on
        for step in self.steps:
            step.apply(row)
        return row


def _likeliest(row: Row) -> int:
    token = int(row.argmax())  # a NaN counts as the largest
    _check(row[token])
    return token


def _check(top: np.float32) -> None:
    if not math.isfinite(top):  # numpy's own takes twenty times as long for one number
        raise BadLogits(f"the largest logit is {top}")


def _candidates(row: Row, top_k: int, top_p: float, min_p: float) -> Ids:
    """Ids that top-k, then top-p, then min-p leave, likeliest first."""
    if 0 < top_k < len(row):
        ids = largest(row, top_k)
        logits = row[ids].astype(np.float64)
        _check(row[ids[0]])
        weights = np.exp(logits - logits[0])
        mass = weights.sum()
    elif min_p > 0:
        ids, mass = _not_below(row, np.log(min_p))
    elif top_p < 1:
        ids, mass = _nucleus(row, top_p)
    else:
        _check(row.max())
        return np.arange(len(row))
    logits = row[ids].astype(np.float64)
    keep = len(ids)
    if min_p > 0:
        keep = int(np.searchsorted(-logits, -(logits[0] + np.log(min_p)), side="right"))
    if top_p < 1:
        cumulated = np.cumsum(np.exp(logits[:keep] - logits[0]))
        keep = min(keep, int(cumulated.searchsorted(top_p * mass, side="left")) + 1)
    return ids[: max(keep, 1)]


def _not_below(row: Row, depth: float) -> tuple[Ids, float]:
    """Ids whose logit is at least the largest + `depth` (<= 0), likeliest first, and the mass of all."""
    top = row.max()
    _check(top)
    # A float32 rounding below the exact border: what is too much goes by the float64 comparison later.
    ids = np.flatnonzero(row >= np.float32(top + depth) - np.float32(1e-3))
    order = np.argsort(-row[ids], kind="stable")
    return ids[order], float(np.exp(row - top).sum(dtype=np.float64))


def _nucleus(row: Row, top_p: float) -> tuple[Ids, float]:
    """At least the likeliest ids that together have `top_p` of the mass, and the mass of all."""
    top = row.max()
    _check(top)
    mass = float(np.exp(row - top).sum(dtype=np.float64))
    if len(row) > _NUCLEUS:
        ids = largest(row, _NUCLEUS)
        if np.exp(row[ids].astype(np.float64) - top).sum() >= top_p * mass:
            return ids, mass
    # Too flat for that: count the mass in bins of 1/32 logit each, and sort only what lies in the first ones.
    bins = np.minimum((top - row) * np.float32(32), np.float32(_BINS - 1)).astype(np.int64)
    cumulated = np.bincount(bins, weights=np.exp(row - top), minlength=_BINS).cumsum()
    last = int(cumulated.searchsorted(top_p * mass, side="left")) + 1  # one more, for rounding
    ids = np.flatnonzero(bins <= last)
    return ids[np.argsort(-row[ids], kind="stable")], mass


def largest(row: Row, count: int) -> Ids:
    """Ids of the `count` largest logits, largest first; of equal ones the lower id first.

    The row is cut into groups; the `count`-th largest of the groups' maxima is a lower bound of the
    `count`-th largest logit, and few logits lie above it: those are sorted.
    """
    groups = max(_GROUPS, 4 * count)
    depth = len(row) // groups
    if depth < 2:
        bound = np.partition(row, len(row) - count)[len(row) - count]
        if np.isnan(row.max()):
            raise BadLogits("a logit is nan")
    else:
        cut = depth * groups
        maxima = row[:cut].reshape(depth, groups).max(axis=0)  # [groups]
        maxima[: len(row) - cut] = np.maximum(maxima[: len(row) - cut], row[cut:])
        if np.isnan(maxima.max()):
            raise BadLogits("a logit is nan")
        bound = np.partition(maxima, groups - count)[groups - count]
    ids = np.flatnonzero(row >= bound) if bound > -np.inf else np.flatnonzero(row > -np.inf)
    if not len(ids):
        raise BadLogits("every logit is -inf")
    order = np.argsort(-row[ids], kind="stable")[:count]
    return ids[order]
