"""What a run tells while it works."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """What is being done."""

    WRITE = "write"
    """The model writes its own calibration text. What is counted is as with CALIBRATE."""
    CALIBRATE = "calibrate"
    """The model is run over calibration text. What is counted are samples, and tokens in place of bytes."""
    CONVERT = "convert"
    """Tensors are read, changed and written."""
    MEASURE = "measure"
    """What each type would cost each tensor."""
    QUANTIZE = "quantize"
    """llama.cpp quantizes them."""
    CHECK = "check"
    """The result is checked and flushed to the disk."""
    COMPARE = "compare"
    """The result and its source are run over a text. What is counted are hundredths."""


@dataclass(frozen=True, slots=True)
class Step:
    """A tensor is begun, or a part of it is done."""

    stage: Stage
    index: int
    """Of the tensor, from 1."""
    total: int
    """Tensors of this stage."""
    name: str
    done_bytes: int
    """Of the source, in this stage."""
    total_bytes: int


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Tell nobody."""
