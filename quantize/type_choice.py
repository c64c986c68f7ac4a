"""Which type each tensor of a run gets, where the file's type alone does not say it: single tensors that a
person named, or all of them, chosen for a size."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.ggml_types import BLOCKS, GGMLType
from models.gguf import read_header
from quantize import native
from quantize.budget import Budget
from quantize.errors import BadRequest, NativeFailure
from quantize.formats.gguf import OutputTensor, padded
from quantize.importance import Made
from quantize.measure import Told
from quantize.plan import TARGETS, Target
from quantize.targets import Mix, Problem, choose_mix, file_type, problem
from quantize.tensor_types import NO_FALLBACK, Override, resolve

PROBES = (GGMLType.Q8_0, GGMLType.Q4_0)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asks for beside the file's type."""

    overrides: tuple[Override, ...] = ()
    budget: Budget | None = None

    def __bool__(self) -> bool:
        return bool(self.overrides) or self.budget is not None

    def check(self, target: Target) -> None:
        """Refuse what does not go together.

        Raises:
            BadRequest: single types beside a file that llama.cpp does not quantize.
        """
        if self.overrides and target.is_dense:
            raise BadRequest(
                f"{self.overrides[0].text} needs a quantized --type: for {target.name} in all other tensors "
                f"give --type q8_0, and --tensor-type .={target.name} last"
            )

    def check_repacked(self, target: Target) -> None:
        """Refuse wishes of a file whose weights are taken over as they are.

        Raises:
            BadRequest: there are some.
        """
        if self.overrides:
            raise BadRequest(
                f"{self.overrides[0].text} doesn't go with this source: it becomes {target.label} as it is, "
                "and nothing is rounded; give another --type"
            )


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class Choice:
    """The types of a run's tensors."""

    target: Target
    types: Mapping[str, GGMLType] = field(default_factory=dict)
    """Of the tensors that are not of the file's type, by name."""
    problem: Problem | None = None
    """What is still to be chosen."""
    mix: Mix | None = None
    """What was chosen."""

    @property
    def pairs(self) -> tuple[tuple[str, int], ...]:
        """As `native.Order` takes them."""
        return tuple((name, int(kind)) for name, kind in self.types.items())

    def check_kept(self, path: Path) -> None:
        """See that llama.cpp did as it was told.

        Raises:
            NativeFailure: another version of it might not.
        """
        if self.mix is None:
            return
        became = {tensor.name: tensor.type for tensor in read_header(path).tensors}
        odd = [name for name, kind in self.types.items() if became.get(name) is not kind]
        if odd:
            raise NativeFailure(
                f"llama.cpp gave {len(odd)} tensors other types than were chosen, the first is {odd[0]}: "
                "give --type instead"
            )


class Chooser:
    """Of one run."""

    def __init__(
        self,
        source: Path,
        tensors: Iterable[OutputTensor],
        target: Target,
        wishes: Wishes,
        *,
        header_bytes: int,
    ) -> None:
        """
        Args:
            source: a GGUF file, of which the header alone is read.
            tensors: its.
            target: the file's type.
            wishes: what goes beyond it.
            header_bytes: of the result, before its data; at most.

        Raises:
            NativeFailure: llama.cpp refused the file.
            BadRequest: a type of file that the tensors can't have.
        """
        self.source = source
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.target = target
        self.wishes = wishes
        self.header_bytes = header_bytes
        self.quantized = quantized_names(source, self.tensors) if wishes else frozenset()
        if not wishes:
            _check_rows(target, self.tensors)

    def settle(self, weighted: Callable[[str], bool]) -> Choice:
        """What can be said before the weights are looked at.

        Args:
            weighted: whether there are, or will be, importance weights for a tensor.

        Raises:
            BadRequest: a wish that does not go with the model, or a size that can't be reached.
        """
        if not self.wishes:
            return Choice(self.target)
        types = resolve(self.wishes.overrides, self.tensors, self.quantized, weighted)
        if self.wishes.budget is None:
            return Choice(self.target, types)
        found = problem(
            self.wishes.budget,
            self.tensors.values(),
            quantized=self.quantized,
            settled=types,
            weighted=weighted,
            header_bytes=self.header_bytes,
        )
        return Choice(self.target, types, found)

    def settle_by(self, made: Made | None) -> Choice:
        """The same by the importance matrix that there is."""
        if made is None:
            return self.settle(lambda name: False)
        return self.settle(lambda name: made.matrix.weights(name) is not None)

    def most_bytes(self, choice: Choice, *, requantize: bool, imatrix: bool) -> int:
        """Of the result, before its types are all chosen.

        Args:
            choice: what `settle` said.
            requantize: the source may be quantized already.
            imatrix: there will be an importance matrix, which decides about some types.
        """
        if choice.problem is not None:
            return padded(choice.problem.header_bytes) + choice.problem.room
        tensors = native.exact_types(
            self.source, choice.target.ftype, requantize=requantize, types=choice.pairs, imatrix=imatrix
        )
        return padded(self.header_bytes) + sum(padded(tensor.becomes_bytes) for tensor in tensors.values())


def quantized_names(source: Path, names: Iterable[str]) -> frozenset[str]:
    """The tensors that llama.cpp quantizes: those that become what is asked for, whatever that is."""
    names = tuple(names)
    first, second = (
        native.exact_types(
            source, TARGETS["q8_0"].ftype, requantize=True, types=tuple((name, int(kind)) for name in names)
        )
        for kind in PROBES
    )
    return frozenset(name for name, tensor in first.items() if tensor.becomes is not second[name].becomes)


def _check_rows(target: Target, tensors: Mapping[str, OutputTensor]) -> None:
    """Of the types for which llama.cpp has no other where rows do not fill the blocks."""
    kind = next((kind for kind in NO_FALLBACK if kind.name == target.label), None)
    if kind is None:
        return
    block = BLOCKS[kind].elements
    for tensor in tensors.values():
        if len(tensor.shape) > 1 and tensor.shape[-1] % block:
            raise BadRequest(
                f"--type {target.name}: {tensor.name} has rows of {tensor.shape[-1]}, which blocks of "
                f"{block} don't fill: take another type"
            )


def in_layers(expected: bool) -> Callable[[str], bool]:
    """Whether an importance matrix that is still to be made will know a tensor."""
    return lambda name: expected and name.startswith("blk.")


def chosen(
    choice: Choice,
    source: Path,
    copy: Path,
    *,
    imatrix: str | None,
    calibration: Path | None,
    threads: int,
    told: Told,
) -> Choice:
    """Measure what is still to be chosen, and choose: all of `choose_mix`.

    Returns:
        The same where there is nothing to choose.
    """
    if choice.problem is None:
        return choice
    mix = choose_mix(
        choice.problem,
        source,
        copy=copy,
        imatrix=imatrix,
        calibration=calibration,
        threads=threads,
        told=told,
    )
    tensors = (
        OutputTensor(one.name, one.shape, mix.types.get(one.name, one.type)) for one in choice.problem.tensors
    )
    return Choice(replace(choice.target, ftype=file_type(tensors)), mix.types, mix=mix)
