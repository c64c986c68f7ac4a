"""A matrix in signed bytes with one scale for each output."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """weight[n, k] = scales[n] * integers[n, k].

    Raises:
        ValueError: the arrays don't fit each other.
    """

    integers: npt.NDArray[np.int8]
    """[N, K]."""
    scales: npt.NDArray[np.float32]
    """[N, 1]; each a value of the type that it is stored in."""

    def __post_init__(self) -> None:
        if self.scales.shape != (len(self.integers), 1):
            raise ValueError(f"scales {self.scales.shape} for {self.integers.shape}")

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        n, k = self.integers.shape
        return n, k

    def rows(self, start: int, stop: int | None = None) -> Self:
        """Some of the rows."""
        span = slice(start, stop)
        return type(self)(self.integers[span], self.scales[span])

    def take(self, order: npt.NDArray[np.intp]) -> Self:
        """The rows in another order."""
        return type(self)(self.integers[order], self.scales[order])

    def dense(self) -> npt.NDArray[np.float32]:
        """The weights, float32 [N, K]."""
        values = self.integers.astype(np.float32)
        values *= self.scales
        return values
