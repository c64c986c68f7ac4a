"""What a person asks of a quantization that goes layer by layer: the format, the method, their settings."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from quantize.errors import BadRequest

GROUP_SIZES = (128, 64, 32)
"""Tried in this order where none was asked for."""


class Format(StrEnum):
    """Whose layout the result has."""

    GPTQ = "gptq"
    AWQ = "awq"
    INT8 = "int8"


class Method(StrEnum):
    """How integers are found."""

    GPTQ = "gptq"
    AWQ = "awq"
    RTN = "rtn"
    """To the nearest, without a look at any text: the baseline."""


METHODS: dict[Format, tuple[Method, ...]] = {
    Format.GPTQ: (Method.GPTQ, Method.RTN),
    Format.AWQ: (Method.AWQ,),
    Format.INT8: (Method.GPTQ, Method.RTN),
}
"""Of each format, the default first."""


class Order(StrEnum):
    """In which order GPTQ rounds columns."""

    STATIC = "static"
    CLASSIC = "classic"
    GIVEN = "given"
    """As they stand: for comparisons, worse than the others."""


class Scheme(StrEnum):
    """What is in eight bits."""

    W8A16 = "w8a16"
    W8A8 = "w8a8"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Format, method and settings. Those that a format doesn't have keep their defaults.

    Raises:
        BadRequest: they contradict each other.
    """

    format: Format = Format.GPTQ
    method: Method = Method.GPTQ
    bits: int = 4
    group_size: int | None = None
    """Columns that share a scale; -1: the whole row; None: the largest of 128, 64, 32 that divides."""
    symmetric: bool = True
    order: Order = Order.STATIC
    damping: float = 0.03
    """Of GPTQ: the share of each column's own diagonal, and of the median, that is added to the Hessian's."""
    checkpoint_format: str = "gptq"
    """"gptq" or "gptq_v2": how zero points are stored."""
    scheme: Scheme = Scheme.W8A16
    smooth: bool = False
    """Outliers of activations go over to the weights first (SmoothQuant)."""

    def __post_init__(self) -> None:
        if self.method not in METHODS[self.format]:
            raise BadRequest(
                f"--method {self.method} doesn't go with --to {self.format}: "
                f"{' or '.join(METHODS[self.format])} does"
            )
        allowed = {Format.GPTQ: (2, 3, 4, 8), Format.AWQ: (4,), Format.INT8: (8,)}[self.format]
        if self.bits not in allowed:
            raise BadRequest(f"--bits {self.bits} with --to {self.format}: {_either(allowed)} is possible")
        sizes = {Format.GPTQ: (32, 64, 128, -1), Format.AWQ: (32, 64, 128), Format.INT8: (-1,)}[self.format]
        if self.group_size is not None and self.group_size not in sizes:
            raise BadRequest(
                f"--group-size {self.group_size} with --to {self.format}: {_either(sizes)} is possible"
            )
        if self.smooth and self.scheme is not Scheme.W8A8:
            raise BadRequest("--smooth is for activations in eight bits: --to int8 --scheme w8a8")
        if self.checkpoint_format not in {"gptq", "gptq_v2"}:
            raise BadRequest(f"--checkpoint-format {self.checkpoint_format!r}: gptq or gptq_v2 is possible")

    @property
    def reads_text(self) -> bool:
        """Whether the model is run over calibration text."""
        return self.method is not Method.RTN or self.smooth

    @property
    def rounds_inputs(self) -> bool:
        """Whether what goes into the result's matrices is rounded, too."""
        return self.format is Format.INT8 and self.scheme is Scheme.W8A8

    @property
    def size(self) -> int:
        """The group size, which must be known."""
        if self.group_size is None:
            raise ValueError("the group size is not known")
        return self.group_size

    @property
    def label(self) -> str:
        """For a folder's name: "gptq-4bit-g64"."""
        if self.format is Format.INT8:
            return f"int8-{self.scheme}{'-smooth' if self.smooth else ''}"
        name = str(self.format) if self.method == str(self.format) else f"{self.format}-{self.method}"
        group = "row" if self.group_size == -1 else f"g{self.group_size}"
        return (
            f"{name}-{self.bits}bit-{group}{'' if self.symmetric or self.format is Format.AWQ else '-asym'}"
        )

    def record(self) -> dict[str, Any]:
        """For the receipt: what means something with this format and method."""
        without: set[str] = set()
        if self.format is not Format.INT8:
            without |= {"scheme", "smooth"}
        if self.format is not Format.GPTQ:
            without |= {"symmetric", "checkpoint_format"}
        if self.method is not Method.GPTQ:
            without |= {"order", "damping"}
        return {name: value for name, value in asdict(self).items() if name not in without}

    @property
    def fingerprint(self) -> str:
        """A hash of all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def default_group_size(shapes: Iterable[tuple[int, int]]) -> int:
    """The largest of 128, 64 and 32 that divides the columns of all matrices.

    Args:
        shapes: [rows, columns] of each.

    Raises:
        BadRequest: none does.
    """
    columns = {columns for _, columns in shapes}
    for size in GROUP_SIZES:
        if all(n % size == 0 for n in columns):
            return size
    raise BadRequest(
        f"no group size of 128, 64 or 32 divides matrices of {_either(sorted(columns), 'and')} columns: "
        "--to gptq --group-size -1 has a scale for each row, and --to int8 needs no groups"
    )


def check_group_size(size: int, shapes: Iterable[tuple[str, int, int]]) -> None:
    """Refuse a group size that doesn't divide a matrix.

    Args:
        size: -1 always does.
        shapes: name, rows and columns of each.

    Raises:
        BadRequest: with the sizes that do.
    """
    shapes = list(shapes)
    for name, _, columns in shapes:
        if size != -1 and columns % size:
            fitting = [s for s in GROUP_SIZES if all(n % s == 0 for _, _, n in shapes)]
            raise BadRequest(
                f"--group-size {size} doesn't divide the {columns} columns of {name}: "
                f"{_either([*fitting, -1])} does"
            )


def _either(values: Iterable[int], word: str = "or") -> str:
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} {word} {last}" if first else last
