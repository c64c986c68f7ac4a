"""A drafted token."""

from enum import StrEnum
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt


class Distribution(Protocol):
    """What a token is drawn from: `edgechat.engine.sampling.Distribution`, as far as it matters here."""

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Candidates, [n], each once; all others have probability 0."""
        ...

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """[n], summing to 1."""
        ...


class Source(StrEnum):
    """Who proposes."""

    NGRAM = "ngram"
    """The conversation's own words."""
    RESUME = "resume"
    """The same, going on behind a word that was changed."""
    PAST = "past"
    """Those of earlier conversations."""
    MODEL = "model"
    """A smaller model."""
    HEADS = "heads"
    """Medusa heads of the model itself."""

    @property
    def computed(self) -> bool:
        """Whether its drafts take time: those that are not verified at once are lost, and later ones stand
        less often. Words cost nothing, and are surer the longer they match."""
        return self in (Source.MODEL, Source.HEADS)


class Draft(msgspec.Struct, frozen=True):
    """One proposed token. A dozen are made in each step: these structs are made faster than dataclasses."""

    token: int
    source: Source
    confidence: float
    """The proposer's own measure, 0 to 1; not a probability until `Calibration` makes it one."""
    drawn_from: Distribution | None = None
    """q, what `token` was drawn from, after temperature and all else; None: it was chosen, not drawn."""
    after: int | None = None
    """The token before it, where that tells something; None: it doesn't."""
