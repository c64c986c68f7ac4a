"""How often drafts stand: from a proposer's confidence to a probability, learnt as the text goes on.

A draft model's probabilities and the length of an n-gram's match both say something about acceptance, and
something else for each text. Two layers, both forgetting: a shift of the log-odds for each proposer, which
learns from every draft (Platt 1999, with the slope fixed at 1), and counts in bins of proposer, place in the
draft and confidence, which start from the first layer's answer. Drafts from words have one place only: a
match's length, which their confidence tells, says it all.

Acceptance is conditional: of the drafts before it standing. Drafts after one that fell are not counted.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from edgechat.engine.speculation.proposal import Draft, Source

_CONFIDENCE_BINS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_PLACE_BINS = (1, 2, 4, 8)
_MOST_SHIFT = 5.0


class LearntBin(msgspec.Struct, frozen=True, array_like=True):
    """Drafts alike, as they are kept on disk."""

    source: Source
    place: int
    """Number of the bin, 0 to len(_PLACE_BINS)."""
    confidence: int
    """Number of the bin, 0 to len(_CONFIDENCE_BINS)."""
    weight: float
    stood: float


class Learnt(msgspec.Struct, frozen=True):
    """All that a calibration has learnt, as it is kept on disk."""

    bins: tuple[LearntBin, ...] = ()
    shift: dict[Source, float] = {}
    mean: dict[Source, float] = {}

    def __post_init__(self) -> None:
        """Refuse what no calibration has learnt.

        Raises:
            ValueError: a number is out of its range.
        """
        places, confidences = range(len(_PLACE_BINS) + 1), range(len(_CONFIDENCE_BINS) + 1)
        sound = all(
            one.place in places and one.confidence in confidences and 0 <= one.stood <= one.weight < math.inf
            for one in self.bins
        )
        sound = sound and all(abs(shift) <= _MOST_SHIFT for shift in self.shift.values())
        if not sound or not all(0 <= mean <= 1 for mean in self.mean.values()):
            raise ValueError("not what a calibration learns")


class _Bin:
    """Drafts alike: how many there were, and how many stood, of late."""

    __slots__ = ("stood", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.stood = 0.0


class Calibration:
    """Acceptance by proposer, place and confidence. Shared by all answers of a pair of models."""

    PRIOR = 8.0
    """So many drafts is the first layer's answer worth in a bin."""
    MEMORY = 64.0
    """So many of the last drafts count in a bin."""
    SURPRISE = 0.35
    """When the last few drafts stood so much more or less often than expected, the text has changed, and
    what was learnt before it counts as little as the first layer's answer."""
    RATE = 0.1
    """Of the log-odds' shift."""
    KEPT = 12.0
    """So many drafts is what was learnt in earlier answers worth in a bin: those were other texts."""

    def __init__(self, learnt: Learnt | None = None) -> None:
        """Begin with what was learnt in an earlier run; None: with nothing."""
        learnt = learnt or Learnt()
        self._bins: dict[tuple[Source, int, int], _Bin] = {}
        self._shift: dict[Source, float] = dict(learnt.shift)
        self._mean: dict[Source, float] = dict(learnt.mean)
        self._surprise: dict[Source, float] = {}
        for one in learnt.bins:
            if one.weight > 0:
                share = min(1.0, self.KEPT / one.weight)
                found = self._bins[one.source, one.place, one.confidence] = _Bin()
                found.weight, found.stood = one.weight * share, one.stood * share

    def learnt(self) -> Learnt:
        """What is to be kept for the next run."""
        bins = tuple(LearntBin(*key, found.weight, found.stood) for key, found in self._bins.items())
        return Learnt(bins, dict(self._shift), dict(self._mean))

    def acceptance(self, draft: Draft, place: int) -> float:
        """How likely `draft` stands if all before it do; `place` counts from 0."""
        prior = self._shifted(draft)
        found = self._bins.get(_key(draft, place))
        return prior if found is None else self._acceptance(found, prior)

    def _acceptance(self, found: _Bin, prior: float) -> float:
        return (found.stood + self.PRIOR * prior) / (found.weight + self.PRIOR)

    def typical(self, source: Source, places: range) -> list[float]:
        """How likely drafts of `source` at these places stand that have not been drawn yet."""
        prior = self.PRIOR * self.mean(source)
        weights, stoods = [self.PRIOR] * (len(_PLACE_BINS) + 1), [prior] * (len(_PLACE_BINS) + 1)
        for (whose, place, _), found in self._bins.items():
            if whose == source:
                weights[place] += found.weight
                stoods[place] += found.stood
        at = (bisect_right(_PLACE_BINS, place) for place in places)
        return [stoods[place] / weights[place] for place in at]

    def mean(self, source: Source) -> float:
        """How often drafts of `source` stood of late; 0.6 before anything is known."""
        return self._mean.get(source, 0.6)

    def learn(self, drafts: Sequence[Draft], n_accepted: int, n_judged: int, first: int = 0) -> None:
        """Learn from a round.

        Args:
            drafts: in order.
            n_accepted: how many stood.
            n_judged: of how many the fate was seen: n_accepted, or one more.
            first: place of the first of them in the draft.
        """
        for i, draft in enumerate(drafts[:n_judged]):
            stood = float(i < n_accepted)
            place = first + i
            key, source = _key(draft, place), draft.source
            prior = self._shifted(draft)
            found = self._bins.get(key)
            if found is None:
                found = self._bins[key] = _Bin()
            surprise = self._surprise.get(source, 0.0)
            surprise += (stood - self._acceptance(found, prior) - surprise) / 8
            if abs(surprise) > self.SURPRISE:
                self.soften(source)
                surprise = 0.0
            self._surprise[source] = surprise
            keep = 1 - 1 / self.MEMORY
            found.weight = found.weight * keep + 1
            found.stood = found.stood * keep + stood
            shift = self._shift.get(source, 0.0) + self.RATE * (stood - prior)
            self._shift[source] = max(-_MOST_SHIFT, min(_MOST_SHIFT, shift))
            self._mean[source] = self.mean(source) + (stood - self.mean(source)) / 16

    def begin(self) -> None:
        """A new answer begins."""
        for source in Source:
            self.soften(source, self.KEPT)

    def soften(self, source: Source, weight: float = PRIOR) -> None:
        """Keep what is believed of `source`, but less firmly."""
        for key, found in self._bins.items():
            if key[0] == source and found.weight > weight:
                found.stood *= weight / found.weight
                found.weight = weight

    def _shifted(self, draft: Draft) -> float:
        odds = min(max(draft.confidence, 0.01), 0.99)
        return 1 / (1 + (1 - odds) / odds * math.exp(-self._shift.get(draft.source, 0.0)))


def _key(draft: Draft, place: int) -> tuple[Source, int, int]:
    place = bisect_right(_PLACE_BINS, place) if draft.source.computed else 0
    return draft.source, place, bisect_right(_CONFIDENCE_BINS, draft.confidence)
