"""A matrix in small integers: what GPTQ, AWQ and plain rounding make, whatever the file calls it."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """weight[n, k] = scales[n, g] * (integers[n, k] - zeros[n, g]), where g is the group of column k.

    Raises:
        ValueError: the arrays don't fit each other.
    """

    bits: int
    integers: npt.NDArray[np.uint8]
    """[N, K], each under 2**bits. N is the layer's outputs, K its inputs."""
    scales: npt.NDArray[np.float16] | npt.NDArray[np.float32]
    """[N, G]."""
    zeros: npt.NDArray[np.uint8]
    """[N, G]."""
    group_size: int
    """Columns that share a scale; K where the whole row does."""
    groups: npt.NDArray[np.int32] | None = None
    """[K]: the group of each column (g_idx); None: k // group_size."""

    def __post_init__(self) -> None:
        n, k = self.integers.shape
        if self.group_size < 1 or self.scales.shape != (n, -(-k // self.group_size)):
            raise ValueError(f"scales {self.scales.shape} for [{n}, {k}] in groups of {self.group_size}")
        if self.zeros.shape != self.scales.shape:
            raise ValueError(f"zeros {self.zeros.shape} beside scales {self.scales.shape}")
        if self.groups is not None and self.groups.shape != (k,):
            raise ValueError(f"groups {self.groups.shape} for {k} columns")

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        n, k = self.integers.shape
        return n, k

    @property
    def is_symmetric(self) -> bool:
        """Every zero stands in the middle."""
        return bool((self.zeros == 1 << (self.bits - 1)).all())

    @property
    def is_sequential(self) -> bool:
        """Groups are columns that follow each other."""
        return self.groups is None or bool((self.groups == self.sequential_groups()).all())

    def sequential_groups(self) -> npt.NDArray[np.int32]:
        """[K]: k // group_size."""
        return (np.arange(self.integers.shape[1]) // self.group_size).astype(np.int32)

    def in_sequence(self) -> Self:
        """The same, without the groups' numbers; they must be sequential."""
        return replace(self, groups=None)

    def rows(self, start: int, stop: int | None = None) -> Self:
        """Some of the rows."""
        span = slice(start, stop)
        return replace(self, integers=self.integers[span], scales=self.scales[span], zeros=self.zeros[span])

    def take(self, order: npt.NDArray[np.intp]) -> Self:
        """The rows in another order."""
        return replace(
            self, integers=self.integers[order], scales=self.scales[order], zeros=self.zeros[order]
        )

    def dense(self) -> Floats:
        """The weights, float32 [N, K]: each the one rounding of its exact value."""
        n, k = self.shape
        groups = self.sequential_groups() if self.groups is None else self.groups
        whole = self.is_sequential and k % self.group_size == 0
        if whole:
            steps = self.integers.reshape(n, -1, self.group_size).astype(np.float32)
            steps -= self.zeros[:, :, None]
            steps *= self.scales[:, :, None].astype(np.float32)
            return steps.reshape(n, k)
        values = self.integers.astype(np.float32)
        values -= self.zeros[:, groups]
        values *= self.scales.astype(np.float32)[:, groups]
        return values
