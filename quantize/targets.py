"""A type for each tensor, so that a file of a given size loses least.

What a type costs a tensor is its measured error times how much the model's answers suffer by an error in that
place: the divergence of a group of tensors that were disturbed, shared among them by their own errors. Near
the source a divergence grows in proportion to the squared error, and those of several places add up (the
second order of its Taylor series), so that the sum of all costs is what the whole file is expected to lose.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from models.ggml_types import BLOCKS, DENSE, GGMLType
from quantize.budget import Budget
from quantize.errors import BadRequest
from quantize.formats.gguf import OutputTensor
from quantize.knapsack import Option, choose
from quantize.measure import Measured, Order, Question, Told, measure
from quantize.tensor_types import kind_of

K_TYPES = (GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K)
I_TYPES = (
    GGMLType.IQ2_XXS,
    GGMLType.IQ2_XS,
    GGMLType.IQ2_S,
    GGMLType.IQ3_XXS,
    GGMLType.IQ3_S,
    GGMLType.IQ4_XS,
)
"""In blocks of 256 too; tried where there are importance weights."""
NARROW = (GGMLType.Q4_0, GGMLType.IQ4_NL, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1)
"""For rows that blocks of 256 don't fill."""

GROUPS = 32
"""About as many groups of tensors are disturbed, a run of the model each."""
N_TEXTS = 4
N_TOKENS = 128
"""Passages that it reads, and their tokens."""

FILE_TYPES = {
    GGMLType.Q4_0: 2, GGMLType.Q4_1: 3, GGMLType.Q8_0: 7,
    GGMLType.Q5_0: 8, GGMLType.Q5_1: 9, GGMLType.Q2_K: 10, GGMLType.Q3_K: 12, GGMLType.Q4_K: 15,
    GGMLType.Q5_K: 17, GGMLType.Q6_K: 18, GGMLType.IQ2_XXS: 19, GGMLType.IQ2_XS: 20, GGMLType.IQ3_XXS: 23,
    GGMLType.IQ4_NL: 25, GGMLType.IQ3_S: 26, GGMLType.IQ2_S: 28, GGMLType.IQ4_XS: 30,
}  # fmt: skip
"""`llama_ftype` of a file that is mostly of a type. Those in 16 bits are not there: llama.cpp would make all
tensors of that type."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What was chosen."""

    types: Mapping[str, GGMLType]
    """Of the tensors that llama.cpp quantizes, by name."""
    expected_divergence: float
    """From the source, by the measured costs: for the comparison of mixes with each other."""


def candidates(tensor: OutputTensor, *, weighted: bool) -> tuple[GGMLType, ...]:
    """The types that a tensor could have, the smallest first; what it is already is the last.

    Args:
        tensor: as it is in the source.
        weighted: whether there are importance weights for it.
    """
    columns = tensor.shape[-1]
    kinds = (K_TYPES + (I_TYPES if weighted else ())) if columns % 256 == 0 else NARROW
    kinds = (*kinds, GGMLType.Q8_0)
    # F32 becomes BF16 at most, which holds numbers as large.
    best = GGMLType.BF16 if tensor.type is GGMLType.F32 else tensor.type
    top = BLOCKS[best].bits_per_weight
    smaller = [
        kind
        for kind in kinds
        if columns % BLOCKS[kind].elements == 0 and kind is not best and BLOCKS[kind].bits_per_weight < top
    ]
    return (*sorted(smaller, key=lambda kind: BLOCKS[kind].bits_per_weight), best)


@dataclass(frozen=True, slots=True)
class Problem:
    """Tensors with their candidates, and the room that there is for them."""

    budget: Budget
    tensors: tuple[OutputTensor, ...]
    """All of the file, of the types that they have in the source."""
    candidates: Mapping[str, tuple[GGMLType, ...]]
    """Of those that llama.cpp quantizes; one alone is settled."""
    header_bytes: int

    @property
    def n_weights(self) -> int:
        """Of all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def room(self) -> int:
        """For all tensors."""
        return self.budget.room(self.header_bytes, self.n_weights)

    @property
    def fixed(self) -> int:
        """What the tensors take that stay as they are."""
        return sum(
            self.budget.taken(tensor.n_bytes) for tensor in self.tensors if tensor.name not in self.candidates
        )

    def size(self, tensor: OutputTensor, kind: GGMLType) -> int:
        """What a tensor takes of the room in a type."""
        return self.budget.taken(OutputTensor(tensor.name, tensor.shape, kind).n_bytes)

    @property
    def open(self) -> list[OutputTensor]:
        """The tensors that there is something to choose for, or that are settled."""
        return [tensor for tensor in self.tensors if tensor.name in self.candidates]

    @property
    def to_choose(self) -> list[str]:
        """Names of the tensors with more than one candidate."""
        return [name for name, kinds in self.candidates.items() if len(kinds) > 1]

    @property
    def plan(self) -> str:
        """What choosing takes, in a sentence."""
        names = self.to_choose
        most = max((len(self.candidates[name]) for name in names), default=0)
        return (
            f"plan: {len(names)} tensors are measured in up to {most} types, then the model runs "
            f"{len(groups_of(names)) + 1} times over {N_TEXTS} x {N_TOKENS} tokens to see where errors matter"
        )

    def check(self) -> None:
        """Refuse what can't be reached.

        Raises:
            BadRequest: with what can.
        """
        sizes = [[self.size(tensor, kind) for kind in self.candidates[tensor.name]] for tensor in self.open]
        least, most = self.fixed + sum(map(min, sizes)), self.fixed + sum(map(max, sizes))
        shown = [self.budget.shown(room, self.header_bytes, self.n_weights) for room in (least, most)]
        option = self.budget.option
        if self.room < least:
            raise BadRequest(
                f"{option} {self.budget.label} is too small: {shown[0]} is the least for this model"
            )
        if self.room > most:
            raise BadRequest(
                f"{option} {self.budget.label} is more than the source has: {shown[1]} keeps all of it "
                "(--type bf16 or f16)"
            )


def problem(
    budget: Budget,
    tensors: Iterable[OutputTensor],
    *,
    quantized: frozenset[str],
    settled: Mapping[str, GGMLType],
    weighted: Callable[[str], bool],
    header_bytes: int,
) -> Problem:
    """What there is to choose.

    Args:
        budget: how large it may be.
        tensors: of the file, in the source's types.
        quantized: names of those that llama.cpp quantizes.
        settled: types that a person asked for.
        weighted: whether there are importance weights for a tensor.
        header_bytes: of the result, before its data.

    Raises:
        BadRequest: the budget can't be kept, or the source has more than it needs to.
    """
    tensors = tuple(tensors)
    kinds = {
        tensor.name: (settled[tensor.name],)
        if tensor.name in settled
        else candidates(tensor, weighted=weighted(tensor.name))
        for tensor in tensors
        if tensor.name in quantized
    }
    found = Problem(budget, tensors, kinds, header_bytes)
    found.check()
    return found


def groups_of(names: Sequence[str], most: int = GROUPS) -> tuple[tuple[str, ...], ...]:
    """Tensors of one kind in neighbouring layers, so that there are about `most` groups.

    Args:
        names: of tensors.
        most: groups; there are never fewer than kinds.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of(name), []).append(name)
    single = sum(len(found) == 1 for found in kinds.values())
    several = len(kinds) - single
    parts = max(1, (most - single) // several) if several else 1
    groups: list[tuple[str, ...]] = []
    for found in kinds.values():
        found.sort(key=_layer)
        n = min(parts, len(found))
        cuts = [round(i * len(found) / n) for i in range(n + 1)]
        groups += [tuple(found[start:stop]) for start, stop in pairwise(cuts)]
    return tuple(groups)


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def solve(found: Problem, measured: Measured, groups: Sequence[Sequence[str]]) -> Mix:
    """Choose by what was measured.

    Args:
        found: the tensors and the room.
        measured: errors of each tensor with several candidates.
        groups: as they were disturbed.
    """
    weight: dict[str, float] = {}
    for group, divergence in zip(groups, measured.divergences, strict=True):
        error = sum(measured.disturbed[name] for name in group)
        weight |= dict.fromkeys(group, divergence / error if error > 0 else 0.0)
    items, kinds = [], []
    for tensor in found.open:
        types = found.candidates[tensor.name]
        errors = measured.errors.get(tensor.name, {})
        kinds.append(types)
        items.append(
            [
                Option(found.size(tensor, kind), weight.get(tensor.name, 0.0) * errors.get(kind, 0.0))
                for kind in types
            ]
        )
    picks = choose(items, found.room - found.fixed)
    chosen = {tensor.name: kind[pick] for tensor, kind, pick in zip(found.open, kinds, picks, strict=True)}
    return Mix(chosen, sum(options[pick].cost for options, pick in zip(items, picks, strict=True)))


def choose_mix(
    found: Problem,
    source: Path,
    *,
    copy: Path,
    imatrix: str | None,
    threads: int,
    calibration: Path | None,
    told: Told,
) -> Mix:
    """Measure and choose.

    Args:
        found: the tensors and the room.
        source: a GGUF file with all of the tensors.
        copy: another, or the same, that may be written to; it is as before in the end.
        imatrix: a file with an importance matrix.
        threads: for the measuring.
        calibration: what the model reads to see how far its answers go; None: the mix of edgechat.
        told: of what was measured.

    Raises:
        NativeFailure: the measuring failed.
    """
    names = found.to_choose
    groups = groups_of(names)
    order = Order(
        source=str(source),
        questions=tuple(
            Question(name, tuple(kind for kind in found.candidates[name] if kind not in DENSE))
            for name in names
        ),
        groups=groups,
        copy=str(copy),
        imatrix=imatrix,
        threads=threads,
        calibration=None if calibration is None else str(calibration.absolute()),
        n_texts=N_TEXTS,
        n_tokens=N_TOKENS,
    )
    return solve(found, measure(order, told), groups)


def file_type(tensors: Iterable[OutputTensor]) -> int:
    """`llama_ftype` of a mix: of the type that holds most of the quantized weights."""
    weights: Counter[GGMLType] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.type in FILE_TYPES:
            weights[tensor.type] += tensor.n_elements
    return FILE_TYPES[weights.most_common(1)[0][0] if weights else GGMLType.Q8_0]
