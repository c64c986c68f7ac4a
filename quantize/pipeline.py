"""One run: a checkpoint in, a GGUF file out, or nothing."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.checkpoint import GGUFCheckpoint, SafetensorsCheckpoint, open_checkpoint
from models.ggml_types import GGMLType
from models.gguf import TensorInfo, read_header
from models.packed import PackedCheckpoint
from models.receipt import KEY
from models.sizes import bits_per_weight
from models.verify import verify_gguf
from quantize import convert, gguf_receipt, importance, native
from quantize.convert import Conversion
from quantize.devices import usable_cores
from quantize.errors import BadRequest, SourceNotFound
from quantize.formats.gguf import Encoded, OutputTensor, data_bytes, header_bytes, write_tensor
from quantize.formats.repack import natural_target
from quantize.importance import Made, Maker, Say, Wanted
from quantize.output import output_path
from quantize.partial import finish, partial, remove_stale
from quantize.plan import TARGETS, Target, check_disk, said_when_full
from quantize.progress import Progress, Stage, Step, silent
from quantize.shares import Share, shares
from quantize.targets import Mix
from quantize.tensor_types import fallbacks
from quantize.tensors import Chunks, Job
from quantize.type_choice import NO_WISHES, Choice, Chooser, Wishes, chosen, in_layers

SUPERBLOCK = 256
"""Weights of a block in the K types and the smallest IQ types."""
ADDED_KEYS_BYTES = gguf_receipt.PIECES_BYTES + importance.KEYS_BYTES
"""At most what the receipt and the notes about an importance matrix take in the header."""
AGAIN = (
    "the source is quantized already, and a second quantization costs quality: "
    "take the original checkpoint where you can"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for."""

    source: Path
    """A folder in safetensors, or a GGUF file."""
    target: Target
    output: Path | None = None
    """A file, or a folder for it; None: the current folder."""
    force: bool = False
    """Replace the output."""
    threads: int = 0
    """0: as many as there are cores for us."""
    importance: Wanted | None = None
    """The importance matrix, for types that are quantized by one; None: without."""
    wishes: Wishes = NO_WISHES
    """Types of single tensors, or a size for which they are chosen."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    path: Path
    architecture: str
    type: str
    n_bytes: int
    n_parameters: int
    source_bytes: int
    seconds: float
    notes: tuple[str, ...]
    bits_per_weight: float
    """Over all weights, without the file's vocabulary and other data: as `models show` has it."""
    importance: Mapping[str, Any] | None = None
    """Where the importance matrix is from; None: there was none."""
    types: tuple[Share, ...] = ()
    """How many tensors are of which type."""
    mix: Mix | None = None
    """What was chosen for a size; None: nothing was."""


def run(request: Request, progress: Progress = silent, say: Say = lambda text: None) -> Result:
    """Convert and quantize. The output appears whole, checked and flushed, or not at all.

    Args:
        request: what is wanted.
        progress: is told of each step.
        say: is told in a sentence what is planned.

    Raises:
        FileNotFoundError: the source, or a part of it, is missing.
        ModelError: the source is broken, or not supported.
        QuantizeError: the request can't be done.
    """
    begun = time.monotonic()
    source = request.source
    if not source.exists():
        raise SourceNotFound(f"nothing at {source}: give a checkpoint's folder or a GGUF file")
    output = output_path(request.source, request.target, request.output, force=request.force)
    _check_importance(request)
    request.wishes.check(request.target)
    remove_stale(output)
    with open_checkpoint(source) as checkpoint, said_when_full(output):
        if isinstance(checkpoint, GGUFCheckpoint):
            made = _from_gguf(checkpoint, request, output, progress, say, begun=begun)
        else:
            made = _from_folder(checkpoint, request, output, progress, say, begun=begun)
        source_bytes = sum(tensor.n_bytes for tensor in checkpoint.tensors.values())
    tensors = read_header(output).tensors
    return Result(
        path=output,
        architecture=made.architecture,
        type=request.target.label,
        n_bytes=output.stat().st_size,
        n_parameters=made.n_parameters,
        source_bytes=source_bytes,
        seconds=time.monotonic() - begun,
        notes=(*made.notes, *_fallbacks(tensors, request.target), *_of_type(tensors, request, made.choice)),
        bits_per_weight=bits_per_weight(tensors, sum(one.n_elements for one in tensors)),
        importance=None if made.importance is None else made.importance.record,
        types=shares(OutputTensor(one.name, one.shape, one.type) for one in tensors),
        mix=None if made.choice is None else made.choice.mix,
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written, and how."""

    architecture: str
    n_parameters: int
    notes: tuple[str, ...]
    importance: Made | None = None
    choice: Choice | None = None


def _check_importance(request: Request) -> None:
    """Refuse options that don't go with the type, and a type that doesn't go without.

    Raises:
        BadRequest: with what doesn't.
        SourceNotFound: a file or a folder that is named is not there.
    """
    if request.importance is not None:
        request.importance.check(request.target, request.wishes)
    elif request.target.needs_imatrix:
        raise BadRequest(f"{request.target.name} needs an importance matrix: leave out --imatrix off")


def _maker(request: Request, tensors: Sequence[OutputTensor], progress: Progress, say: Say) -> Maker | None:
    """What makes the importance matrix; None: there shall be none."""
    if request.importance is None:
        return None
    threads = request.threads or usable_cores()
    return Maker(request.importance, request.target, tensors, threads=threads, progress=progress, say=say)


def _fallbacks(tensors: Sequence[TensorInfo], target: Target) -> tuple[str, ...]:
    """What llama.cpp took for rows that types in blocks of 256 weights do not fit."""
    if not re.search(r"_K|^IQ[1-3]|^IQ4_XS|^TQ", target.label):
        return ()
    odd = Counter(
        one.type.name
        for one in tensors
        if len(one.shape) > 1
        and one.shape[0] % SUPERBLOCK
        and one.type not in {GGMLType.F32, GGMLType.F16, GGMLType.BF16}
    )
    if not odd:
        return ()
    became = ", ".join(f"{count} {kind}" for kind, count in odd.most_common())
    return (
        f"{odd.total()} of {len(tensors)} tensors have rows that are no multiple of {SUPERBLOCK}, which "
        f"{target.label} needs, and became other types: {became}",
    )


def _of_type(tensors: Sequence[TensorInfo], request: Request, choice: Choice | None) -> tuple[str, ...]:
    """Tensors that could not have the type that was asked for; a type that is not for every model."""
    notes: tuple[str, ...] = ()
    if choice is not None and choice.mix is None:
        notes = fallbacks(choice.types, {one.name: one.type for one in tensors})
    if request.target.trained:
        notes += (f"{request.target.label} is for models that were trained to it: little is left of others",)
    return notes


def _from_gguf(
    checkpoint: GGUFCheckpoint, request: Request, output: Path, progress: Progress, say: Say, *, begun: float
) -> _Written:
    verify_gguf(request.source)
    kinds = {tensor.type for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1}
    quantized = bool(kinds - {GGMLType.F32, GGMLType.F16, GGMLType.BF16})
    notes: tuple[str, ...] = (
        (AGAIN,) if quantized and request.target.name not in {"f32", "f16", "bf16"} else ()
    )
    if request.target.direct is not None and not request.wishes:
        conversion = convert.from_gguf(checkpoint, request.target)
        with partial(output) as path:
            header = header_bytes(_with_room(conversion), conversion.tensors)
            check_disk(output.parent, len(header) + data_bytes(conversion.tensors))
            path.write_bytes(header)
            _fill(path, len(header), conversion, progress)
            _deliver(path, output, request, progress, begun=begun)
        return _Written(conversion.architecture, conversion.n_parameters, notes)
    tensors = [OutputTensor(one.name, one.shape, one.type) for one in checkpoint.tensors.values()]
    chooser = Chooser(
        request.source, tensors, request.target, request.wishes, header_bytes=_header_bytes(checkpoint)
    )
    weighted = request.importance is not None
    choice = chooser.settle(in_layers(weighted))
    check_disk(output.parent, chooser.most_bytes(choice, requantize=quantized, imatrix=weighted))
    maker = _maker(request, tensors, progress, say)
    made = None
    if maker is not None:
        made = maker.read() or maker.by_llama(request.source, output)
        notes += tuple(maker.notes)
    choice = chooser.settle_by(made)
    if choice.problem is not None:
        with _dense_copy(checkpoint, output, progress) as copy:
            choice = _chosen(choice, request, output, copy, progress=progress, made=made, say=say)
    _quantize(request.source, output, request, progress, choice, begun=begun, made=made, requantize=quantized)
    n_parameters = sum(tensor.n_elements for tensor in checkpoint.tensors.values())
    return _Written(checkpoint.header.architecture, n_parameters, notes, made, choice)


def _header_bytes(checkpoint: GGUFCheckpoint) -> int:
    """At most what llama.cpp writes before the data: it adds two keys where they are not there."""
    keys = ("general.file_type", "general.quantization_version")
    missing = [key for key in keys if key not in checkpoint.header.fields]
    added = sum(len(key) + 16 for key in missing)
    return checkpoint.header.n_header_bytes + added + ADDED_KEYS_BYTES


@contextmanager
def _dense_copy(checkpoint: GGUFCheckpoint, output: Path, progress: Progress) -> Iterator[Path]:
    """The model in 16 bits, beside the output for a while: to be disturbed."""
    kinds = {tensor.type for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1}
    is_large = bool(kinds & {GGMLType.F32, GGMLType.BF16})
    conversion = convert.from_gguf(checkpoint, TARGETS["bf16" if is_large else "f16"])
    header = header_bytes(conversion.metadata, conversion.tensors)
    check_disk(output.parent, len(header) + data_bytes(conversion.tensors))
    with partial(output) as path:
        path.write_bytes(header)
        _fill(path, len(header), conversion, progress)
        yield path


def _chosen(
    choice: Choice,
    request: Request,
    output: Path,
    copy: Path,
    *,
    progress: Progress,
    made: Made | None,
    say: Say,
) -> Choice:
    """Have the types measured and chosen."""
    if choice.problem is not None:
        say(choice.problem.plan)
    source = request.source if request.source.is_file() else copy
    total_bytes = copy.stat().st_size

    def tell(name: str, index: int, total: int) -> None:
        progress(Step(Stage.MEASURE, index, total, name, total_bytes * index // total, total_bytes))

    with importance.stored(made, output) as imatrix:
        return chosen(
            choice,
            source,
            copy,
            imatrix=imatrix,
            calibration=None if request.importance is None else request.importance.calibration,
            threads=request.threads or usable_cores(),
            told=tell,
        )


def _from_folder(
    checkpoint: SafetensorsCheckpoint,
    request: Request,
    output: Path,
    progress: Progress,
    say: Say,
    *,
    begun: float,
) -> _Written:
    conversion = convert.from_folder(request.source, checkpoint, request.target)
    header = header_bytes(conversion.metadata, conversion.tensors)
    size = len(header) + data_bytes(conversion.tensors)
    notes = conversion.notes
    made = None
    if conversion.is_repacked and request.importance is not None and request.importance.given():
        raise BadRequest(
            f"{request.importance.given()[0]} doesn't go with this source: it becomes {request.target.label} "
            "as it is, and nothing is rounded"
        )
    if conversion.is_repacked:
        request.wishes.check_repacked(request.target)
    choice = None
    with partial(output) as path:
        if (request.target.direct is not None and not request.wishes) or conversion.is_repacked:
            header = header_bytes(_with_room(conversion), conversion.tensors)
            check_disk(output.parent, len(header) + data_bytes(conversion.tensors))
            path.write_bytes(header)
            _fill(path, len(header), conversion, progress)
            _deliver(path, output, request, progress, begun=begun)
        else:
            # A file of that size without contents: enough for llama.cpp to say what each tensor becomes.
            with path.open("wb") as file:
                file.write(header)
                file.truncate(size)
            weighted = request.importance is not None
            chooser = Chooser(
                path,
                conversion.tensors,
                request.target,
                request.wishes,
                header_bytes=len(header) + ADDED_KEYS_BYTES,
            )
            choice = chooser.settle(in_layers(weighted))
            check_disk(output.parent, chooser.most_bytes(choice, requantize=False, imatrix=weighted), size)
            maker = _maker(request, conversion.tensors, progress, say)
            if maker is not None:
                made = maker.read() or maker.by_torch(request.source)
            _fill(path, len(header), conversion, progress)
            if maker is not None:
                made = made or maker.by_llama(path, output)
                notes += tuple(maker.notes)
            choice = chooser.settle_by(made)
            if choice.problem is not None:
                choice = _chosen(choice, request, output, path, progress=progress, made=made, say=say)
            _quantize(path, output, request, progress, choice, begun=begun, made=made, requantize=False)
    is_packed = isinstance(checkpoint, PackedCheckpoint) and bool(checkpoint.packed)
    if is_packed and not conversion.is_repacked and request.target.name not in {"f32", "f16", "bf16"}:
        notes = (*notes, AGAIN)
    return _Written(conversion.architecture, conversion.n_parameters, notes, made, choice)


def default_target(source: Path) -> Target:
    """The type of file that a person gets who names none: of a GPTQ, AWQ or INT8 checkpoint the one that it
    becomes without rounding, else Q4_K_M.

    Raises:
        FileNotFoundError: the source, or a part of it, is missing.
        ModelError: the source is broken, or not supported.
    """
    if source.is_dir():
        with open_checkpoint(source) as checkpoint:
            if isinstance(checkpoint, PackedCheckpoint):
                return natural_target(checkpoint) or TARGETS["q4_k_m"]
    return TARGETS["q4_k_m"]


def _fill(path: Path, start: int, conversion: Conversion, progress: Progress) -> None:
    """Write all tensors after the header."""
    total_bytes = sum(job.source_bytes for job in conversion.jobs)
    total, done = len(conversion.jobs), 0
    with path.open("rb+") as file:
        file.seek(start)
        for index, job in enumerate(conversion.jobs, 1):
            step = Step(Stage.CONVERT, index, total, job.tensor.name, done, total_bytes)
            progress(step)
            write_tensor(file, job.tensor, _told(job, step, progress))
            done += job.source_bytes


def _told(job: Job, begun: Step, progress: Progress) -> Chunks:
    """The job's data; after each piece the progress is told."""
    written = 0
    for chunk in job.chunks():
        yield chunk
        written += len(chunk)
        part = job.source_bytes * written // job.tensor.n_bytes
        progress(replace(begun, done_bytes=begun.done_bytes + part))


def _quantize(
    source: Path,
    output: Path,
    request: Request,
    progress: Progress,
    choice: Choice,
    *,
    begun: float,
    made: Made | None,
    requantize: bool,
) -> None:
    """Have llama.cpp do it."""
    sizes = {tensor.name: tensor.n_bytes for tensor in verify_gguf(source).tensors}
    total_bytes, done = sum(sizes.values()), 0

    def tell(tensor: native.Tensor) -> None:
        nonlocal done
        progress(Step(Stage.QUANTIZE, tensor.index, tensor.total, tensor.name, done, total_bytes))
        done += tensor.n_bytes

    with partial(output) as path, importance.stored(made, output) as imatrix:
        order = native.Order(
            str(source),
            str(path),
            choice.target.ftype,
            request.threads or usable_cores(),
            requantize,
            dry_run=False,
            types=choice.pairs,
            imatrix=imatrix,
            keys=(*(() if made is None else made.keys), *gguf_receipt.reserved_pieces()),
        )
        native.run(order, tell)
        choice.check_kept(path)
        _deliver(path, output, request, progress, begun=begun, made=made)


def _with_room(conversion: Conversion) -> dict[str, Encoded]:
    """The metadata, with room for the receipt."""
    return {**conversion.metadata, KEY: gguf_receipt.reserved()}


def _deliver(
    path: Path, output: Path, request: Request, progress: Progress, *, begun: float, made: Made | None = None
) -> None:
    """Check the finished file as one from strangers is checked, flush it, and give it its name."""
    header = verify_gguf(path)
    n = len(header.tensors)
    progress(Step(Stage.CHECK, n, n, output.name, header.file_size, header.file_size))
    gguf_receipt.put(path, gguf_receipt.record_of(request.source, request.target, header, made, begun=begun))
    verify_gguf(path)
    finish(path, output)
