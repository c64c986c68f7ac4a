"""How many tensors of a file are of which type."""

from collections.abc import Iterable
from dataclasses import dataclass

from models.ggml_types import GGMLType
from quantize.formats.gguf import OutputTensor


@dataclass(frozen=True, slots=True)
class Share:
    """The tensors of one type."""

    type: str
    n_tensors: int
    n_bytes: int


def shares(tensors: Iterable[OutputTensor]) -> tuple[Share, ...]:
    """How many tensors have which type, those of the most bytes first."""
    found: dict[GGMLType, list[int]] = {}
    for tensor in tensors:
        found.setdefault(tensor.type, []).append(tensor.n_bytes)
    rows = [Share(kind.name, len(sizes), sum(sizes)) for kind, sizes in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.n_bytes))
