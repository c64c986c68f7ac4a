"""What each type would cost each tensor, measured in a process of its own: `python -m quantize.measure`.

Of each tensor some rows go through each type and back. The error is relative to what the tensor puts out:
sum of a (w - w')^2 over sum of a w^2, where a is the mean square of each column's input (the importance
matrix), or 1. No column counts for more than a few dozen: some matrices are given enormous numbers in one
column, and by the first token alone (massive activations, Sun et al. 2024), beside which all other errors
would look like nothing.

How much an error matters depends on where it is. So groups of tensors are disturbed one after the other, and
it is seen how far the model's answers go from what they were (quantize/sensitivity.py).
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from models.checkpoint import GGUFCheckpoint, to_float32
from models.ggml_types import GGMLType
from quantize import child
from quantize.ggml import Floats, Ggml
from quantize.imatrix import ImportanceMatrix

SAMPLE = 2**17
"""Weights of a tensor that go through each type."""
SLOW_SHARE = 8
"""Of these one row in so many goes through types that take longer, as they search a codebook."""
SLOW = frozenset(
    {
        GGMLType.IQ1_S,
        GGMLType.IQ1_M,
        GGMLType.IQ2_XXS,
        GGMLType.IQ2_XS,
        GGMLType.IQ2_S,
        GGMLType.IQ3_XXS,
        GGMLType.IQ3_S,
    }
)
MIN_ROWS = 16
MOST = 32
"""Times the median, that a column counts for at most."""


@dataclass(frozen=True, slots=True)
class Question:
    """A tensor, and the types that it could have."""

    name: str
    types: tuple[GGMLType, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """What shall be measured."""

    source: str
    """A GGUF file."""
    questions: tuple[Question, ...]
    groups: tuple[tuple[str, ...], ...]
    """Names of tensors that are disturbed together."""
    copy: str
    """A GGUF file of the same tensors in F32, F16 or BF16, that may be written to, and is as before in the
    end; not looked at where there are no groups."""
    imatrix: str | None
    threads: int
    calibration: str | None = None
    """A text file or JSONL that the model reads; None: the mix that comes with edgechat."""
    n_texts: int = 4
    """Passages of it."""
    n_tokens: int = 128
    """Of each passage."""


@dataclass(slots=True)
class Measured:
    """What was found."""

    errors: dict[str, dict[GGMLType, float]] = field(default_factory=dict)
    """By tensor and type: relative to the tensor's output."""
    disturbed: dict[str, float] = field(default_factory=dict)
    """The relative error that each tensor was disturbed by."""
    divergences: list[float] = field(default_factory=list)
    """Of each group that was disturbed: mean Kullback-Leibler divergence of a token, in nats."""


Told = Callable[[str, int, int], None]
"""Of what was measured, its number from 1, and how many there are."""


def measure(order: Order, told: Told) -> Measured:
    """Measure, in a process of its own.

    Raises:
        NativeFailure: llama.cpp refused the model, or the process died.
    """
    measured = Measured()
    total = len(order.questions) + len(order.groups)

    def hear(message: child.Message) -> None:
        match message:
            case {"tensor": str(name), "errors": dict(errors)}:
                measured.errors[name] = {GGMLType(int(kind)): one for kind, one in errors.items()}
            case {"divergence": float(divergence), "disturbed": dict(disturbed)}:
                name = order.groups[len(measured.divergences)][0]
                measured.divergences.append(divergence)
                measured.disturbed |= disturbed
            case _:
                return
        told(name, len(measured.errors) + len(measured.divergences), total)

    child.run("quantize.measure", asdict(order), hear, doing=f"measure the types on {order.source}")
    return measured


# --- inside the process


def main() -> int:
    """Do the order that stdin brings."""
    # Threads that wait for each other spin: beside other programs that costs more than all the computing.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    def work(job: child.Message, report: child.Tell) -> int:
        questions = tuple(
            Question(one["name"], tuple(GGMLType(kind) for kind in one["types"])) for one in job["questions"]
        )
        groups = tuple(tuple(names) for names in job["groups"])
        order = Order(**{**job, "questions": questions, "groups": groups})
        try:
            _do(order, report)
        except OSError:
            raise  # `serve` hands it on
        except Exception as error:  # of whatever kind: our parent tells it
            report({"words": " ".join(str(error).split())[:500] or type(error).__name__})
            return 1
        return 0

    return child.serve(work)


def _do(order: Order, report: child.Tell) -> None:
    importance = None if order.imatrix is None else ImportanceMatrix.read(Path(order.imatrix))
    weights_of: Weights = importance.weights if importance is not None else _no_weights
    for name, errors in errors_of(order, weights_of):
        report({"tensor": name, "errors": {int(kind): error for kind, error in errors.items()}})
    if order.groups:
        from quantize.sensitivity import disturb

        for divergence, disturbed in disturb(order, weights_of):
            report({"divergence": divergence, "disturbed": disturbed})


Weights = Callable[[str], Floats | None]
"""Importance by tensor: float32 [columns] or [experts, columns]."""


def _no_weights(name: str) -> None:
    return None


def errors_of(order: Order, weights_of: Weights) -> Iterator[tuple[str, dict[GGMLType, float]]]:
    """Each tensor's errors, one after the other."""
    ggml = Ggml()
    with GGUFCheckpoint(Path(order.source)) as checkpoint, ThreadPoolExecutor(order.threads) as pool:
        for question in order.questions:
            parts = _sampled(checkpoint, question.name, weights_of(question.name))
            fewer = [(rows[::SLOW_SHARE], weights) for rows, weights in parts]
            pending = [
                (kind, pool.submit(_error, ggml, kind, fewer if kind in SLOW else parts))
                for kind in question.types
            ]
            yield question.name, {kind: error.result() for kind, error in pending}


Part = tuple[Floats, Floats | None]
"""Rows, and the weights of their columns."""


def _sampled(checkpoint: GGUFCheckpoint, name: str, weights: Floats | None) -> list[Part]:
    """Rows from all of the tensor, with the weights of their columns; of a stack, of each expert some."""
    stored = checkpoint.tensors[name]
    count = min(stored.n_rows, max(MIN_ROWS, SAMPLE // stored.columns))
    numbers = np.unique(np.linspace(0, stored.n_rows - 1, count).round().astype(int))
    rows = np.concatenate([checkpoint.stored_rows(name, i, i + 1) for i in map(int, numbers)])
    values = to_float32(rows, stored.type)
    if weights is None or weights.ndim == 1:
        return [(values, weights)]
    expert = numbers // (stored.n_rows // len(weights))
    return [(values[expert == i], weights[i]) for i in map(int, np.unique(expert))]


def _weighted(rows: Floats, weights: Floats | None) -> float:
    squares = np.square(rows, dtype=np.float64).sum(0)
    return float(squares.sum() if weights is None else squares @ weights.astype(np.float64))


def _error(ggml: Ggml, kind: GGMLType, parts: Sequence[Part]) -> float:
    """Relative to what comes out without."""
    error = energy = 0.0
    for rows, weights in parts:
        limited = None if weights is None else limit(weights)
        energy += _weighted(rows, limited)
        error += _weighted(rows - ggml.rounded(rows, kind, weights), limited)
    return error / energy if energy > 0 else 0.0


def limit(weights: Floats) -> Floats:
    """Importance, float32 [..., columns], without those that would hide all others of their row."""
    median = np.median(weights, axis=-1, keepdims=True)
    # Where most columns are never used, their median says nothing.
    return np.where(median > 0, np.minimum(weights, np.float32(MOST) * median), weights).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
