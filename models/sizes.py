"""How large a model is, in the terms that people compare models by."""

from collections.abc import Iterable
from typing import Protocol


class Sized(Protocol):
    """Anything that is stored."""

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        ...


def bits_per_weight(stored: Iterable[Sized], n_weights: int) -> float:
    """How many bits a weight takes: scales and all that belongs to it counted, headers and vocabulary not.

    Args:
        stored: all tensors of a model, as they are stored.
        n_weights: of the model.
    """
    return 8 * sum(one.n_bytes for one in stored) / n_weights if n_weights else 0.0
