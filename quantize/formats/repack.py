"""GPTQ, AWQ and INT8 matrices as GGUF blocks, without another rounding.

Symmetric groups of up to four bits become Q4_0, which has the same float16 scale and the same integers;
asymmetric ones Q4_1, which stores the offset -scale * zero in float16 instead of the zero point: exact where
the product fits its eleven bits, as it does with our scales. Eight bits become Q8_0. A block has 32 columns,
so a larger group's scale is repeated.

Block layouts: ggml-common.h.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.errors import UnsupportedModel
from models.families import Change, TensorRule
from models.ggml_types import GGMLType
from models.int8_matrix import Int8Matrix
from models.packed import PackedCheckpoint
from models.packed_layouts import Matrix
from models.quantized_matrix import QuantizedMatrix
from quantize.formats.gguf import OutputTensor
from quantize.plan import TARGETS, Target
from quantize.tensors import Chunks, Job, interleave

BLOCK = 32
LARGEST = 65504.0  # of float16

Bytes = npt.NDArray[np.uint8]


def kind_of(name: str, matrix: Matrix) -> GGMLType:
    """The type whose blocks hold the matrix.

    Raises:
        UnsupportedModel: there is none, with the reason.
    """
    columns = matrix.shape[1]
    if columns % BLOCK:
        raise UnsupportedModel(f"{name} has {columns} inputs, no multiple of GGUF's blocks of {BLOCK}")
    if isinstance(matrix, Int8Matrix):
        return GGMLType.Q8_0
    if not matrix.is_sequential:
        raise UnsupportedModel(
            f"{name} was quantized with desc_act: its groups are not columns that follow each other, and "
            "GGUF has no place for their order; give --type f16 or q8_0, or a checkpoint without desc_act"
        )
    if matrix.group_size % BLOCK:
        raise UnsupportedModel(f"{name} has groups of {matrix.group_size}, no multiple of {BLOCK}")
    if matrix.is_symmetric:
        return GGMLType.Q4_0 if matrix.bits <= 4 else GGMLType.Q8_0
    if matrix.bits <= 4:
        return GGMLType.Q4_1
    raise UnsupportedModel(
        f"{name} has eight bits and a zero point, which no GGUF type has: give --type f16 or q8_0"
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """How well scales and offsets fit into float16."""

    total: int
    inexact: int

    @property
    def note(self) -> str:
        """For a person; "" where all is exact."""
        if not self.inexact:
            return ""
        return (
            f"{self.inexact} of {self.total} scales and offsets were rounded to float16; "
            "the rest of the weights is taken over bit by bit"
        )


def fit(matrices: Iterable[tuple[Matrix, GGMLType]]) -> Fit:
    """How many scales and offsets are not float16's."""
    total = inexact = 0
    for matrix, kind in matrices:
        for exact in _floats(matrix, kind):
            total += exact.size
            inexact += int((exact.astype(np.float16) != exact).sum())
    return Fit(total, inexact)


def _floats(matrix: Matrix, kind: GGMLType) -> list[npt.NDArray[np.float32]]:
    """The numbers that a block stores in float16, as they ought to be: the scales, and Q4_1's offsets."""
    scales = matrix.scales.astype(np.float32)
    if kind is not GGMLType.Q4_1 or isinstance(matrix, Int8Matrix):
        return [scales]
    return [scales, -scales * matrix.zeros]  # exact in float32: 11 bits times 8


def blocks(matrix: Matrix, kind: GGMLType) -> Bytes:
    """The matrix in blocks: [N, bytes of a row].

    Args:
        matrix: with groups of multiples of 32 sequential columns.
        kind: as `kind_of` says; Q4_1 also where it says Q4_0.

    Raises:
        UnsupportedModel: a scale over float16's range.
    """
    n, k = matrix.shape
    floats = [np.repeat(part, k // BLOCK // part.shape[1], axis=1) for part in _floats(matrix, kind)]
    if any(np.abs(part).max(initial=0) > LARGEST for part in floats):
        raise UnsupportedModel("a scale is over float16's 65504: the checkpoint can't become GGUF blocks")
    heads = [part.astype("<f2")[..., None].view(np.uint8) for part in floats]  # [N, K/32, 2] each
    body = _bytes(matrix) if kind is GGMLType.Q8_0 else _nibbles(_integers(matrix, kind))
    return np.concatenate([*heads, body], axis=-1).reshape(n, -1)


def _bytes(matrix: Matrix) -> Bytes:
    """[N, K/32, 32]: signed bytes."""
    n, k = matrix.shape
    if isinstance(matrix, Int8Matrix):
        return matrix.integers.view(np.uint8).reshape(n, -1, BLOCK)
    # Less 128: two's complement with the sign bit flipped.
    return (matrix.integers ^ np.uint8(0x80)).reshape(n, k // BLOCK, BLOCK)


def _integers(matrix: Matrix, kind: GGMLType) -> Bytes:
    """[N, K], four bits each; Q4_0's are less 8."""
    if not isinstance(matrix, QuantizedMatrix):
        raise ValueError("eight bits don't fit into four")
    if kind is GGMLType.Q4_1:
        return matrix.integers
    shift = np.uint8(8 - (1 << (matrix.bits - 1)))
    integers: Bytes = matrix.integers + shift
    return integers


def _nibbles(integers: Bytes) -> Bytes:
    """[N, K/32, 16]: the first half of a block in the low nibbles, the second in the high ones."""
    n = len(integers)
    halves = integers.reshape(n, -1, 2, BLOCK // 2)
    packed: Bytes = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    return packed


def interleaved(matrix: Matrix, heads: int) -> Matrix:
    """The rows of each head in llama.cpp's order."""
    order = interleave(np.arange(matrix.shape[0]).reshape(-1, 1), heads).reshape(-1)
    return matrix.take(order)


def natural_target(checkpoint: PackedCheckpoint) -> Target | None:
    """The type of file that the checkpoint becomes without rounding; None: it holds no integers.

    Raises:
        UnsupportedModel: it can't, with the reason.
        BrokenModelFile: a matrix is damaged.
    """
    kinds: set[GGMLType] = set()
    for name in checkpoint.packed:
        matrix = checkpoint.matrix(name)
        if matrix is not None:
            kinds.add(kind_of(name, matrix))
    for kind, target in ((GGMLType.Q4_1, "q4_1"), (GGMLType.Q4_0, "q4_0"), (GGMLType.Q8_0, "q8_0")):
        if kind in kinds:
            return TARGETS[target]
    return None


class Repacker:
    """Makes the jobs of a conversion that rounds nothing."""

    def __init__(self, checkpoint: PackedCheckpoint, target: Target) -> None:
        """
        Args:
            checkpoint: whose `natural_target` is `target`, or Q4_0 where that is Q4_1.
            target: q4_0, q4_1 or q8_0.
        """
        self.checkpoint = checkpoint
        self.target = target
        self._total = self._inexact = 0

    @property
    def fit(self) -> Fit:
        """Of all jobs made so far."""
        return Fit(self._total, self._inexact)

    def job(self, rule: TensorRule, names: tuple[str, ...]) -> Job | None:
        """How a matrix, or a stack of several, becomes blocks; None: not all of them hold integers."""
        matrices = [self.checkpoint.matrix(name) for name in names]
        if any(matrix is None for matrix in matrices) or rule.factor != 1.0:
            return None
        kinds = set()
        for name, matrix in zip(names, matrices, strict=True):
            assert matrix is not None
            kinds.add(self._kind(name, matrix))
        if len(kinds) > 1:
            return None
        kind = kinds.pop()
        found = fit((matrix, kind) for matrix in matrices if matrix is not None)
        self._total += found.total
        self._inexact += found.inexact
        n_bytes = sum(self.checkpoint.tensors[name].n_bytes for name in names)
        return Job(
            OutputTensor(rule.target, rule.shape, kind), lambda: self._chunks(rule, names, kind), n_bytes
        )

    def _kind(self, name: str, matrix: Matrix) -> GGMLType:
        kind = kind_of(name, matrix)
        return GGMLType.Q4_1 if kind is GGMLType.Q4_0 and self.target.name == "q4_1" else kind

    def _chunks(self, rule: TensorRule, names: tuple[str, ...], kind: GGMLType) -> Chunks:
        for name in names:
            matrix = self.checkpoint.matrix(name)
            assert matrix is not None
            if rule.change is Change.INTERLEAVE:
                matrix = interleaved(matrix, rule.heads)
            yield np.ascontiguousarray(blocks(matrix, kind)).reshape(-1).data
