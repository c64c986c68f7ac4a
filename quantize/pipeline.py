"""One run: a checkpoint in, a GGUF file out, or nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from models.chat_template.usable import template_trouble
from models.checkpoint import GGUFCheckpoint, SafetensorsCheckpoint, open_checkpoint
from models.errors import ModelError
from models.ggml_types import DENSE, GGMLType
from models.gguf import read_header
from models.packed import PackedCheckpoint
from models.sizes import bits_per_weight
from models.verify import verify_gguf
from quantize import convert, gguf_receipt
from quantize.by_llama import ByLlama
from quantize.delivery import fill, write_directly
from quantize.errors import QuantizeError, SourceNotFound
from quantize.formats.gguf import OutputTensor, data_bytes, header_bytes
from quantize.formats.repack import natural_target
from quantize.gguf_evaluation import Evaluation, check_possible, evaluate
from quantize.imatrix_workspace import MatrixWorkspace
from quantize.importance import Made, Say
from quantize.output import output_path
from quantize.partial import partial, remove_stale
from quantize.plan import TARGETS, Target, check_disk, said_when_full
from quantize.progress import Progress, Stage, Step, silent
from quantize.remarks import AGAIN, plain_remark, remarks
from quantize.request import Request, Result, Run
from quantize.shares import shares
from quantize.type_choice import Choice

__all__ = ["Request", "Result", "default_target", "run"]


def run(request: Request, progress: Progress = silent, say: Say = lambda text: None) -> Result:
    """Convert and quantize. The output appears whole, checked and flushed, or not at all; a run that
    was stopped can go on with what it had of its importance matrix.

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
    matrix = None if request.importance is None else request.importance.file
    output = output_path(source, request.target, request.output, force=request.force, matrix=matrix)
    request.check()
    if request.evaluated:
        check_possible(source)
    remove_stale(output)
    with open_checkpoint(source) as checkpoint, said_when_full(output):
        kept = MatrixWorkspace(request, output, checkpoint, say)
        under_way = Run(request, output, progress, say, begun, kept)
        with kept.opened():
            if isinstance(checkpoint, GGUFCheckpoint):
                written = _from_gguf(checkpoint, under_way)
            else:
                written = _from_folder(checkpoint, under_way)
        source_bytes = sum(tensor.n_bytes for tensor in checkpoint.tensors.values())
    evaluation, missing = _evaluated(under_way, rounded=written.choice is not None)
    header = read_header(output)
    tensors, trouble = header.tensors, template_trouble(header)
    return Result(
        path=output,
        architecture=written.architecture,
        type=request.target.label,
        n_bytes=output.stat().st_size,
        n_parameters=written.n_parameters,
        source_bytes=source_bytes,
        seconds=time.monotonic() - begun,
        notes=(
            *written.notes,
            *missing,
            *remarks(tensors, request.target, written.choice),
            *plain_remark(trouble),
        ),
        bits_per_weight=bits_per_weight(tensors, sum(one.n_elements for one in tensors)),
        importance=None if written.importance is None else written.importance.record,
        types=shares(OutputTensor(one.name, one.shape, one.type) for one in tensors),
        mix=None if written.choice is None else written.choice.mix,
        evaluation=evaluation,
        is_plain=bool(trouble),
    )


def _evaluated(run: Run, *, rounded: bool) -> tuple[Evaluation | None, tuple[str, ...]]:
    """Compare the output with its source and put that into its receipt. The file is whole before and after:
    whoever ends the run here loses the comparison alone.

    Args:
        run: whose output is there.
        rounded: llama.cpp made it.

    Returns:
        What was found, and what a person should know where nothing was.
    """
    request = run.request
    if request.evaluated is False or (request.evaluated is None and not rounded):
        return None, ()
    name = run.output.name

    def told(share: float) -> None:
        run.progress(Step(Stage.COMPARE, round(100 * share), 100, name, round(100 * share), 100))

    try:
        if request.evaluated is None:
            check_possible(request.source)
        run.say("comparing it with the source on held-out text; --no-eval does without")
        found = evaluate(request.source, run.output, told, free_memory=request.free_memory)
    except (QuantizeError, ModelError) as error:
        return None, (f"not compared with the source: {error}",)
    except (KeyboardInterrupt, SystemExit) as stop:
        stop.add_note(f"{run.output} is there, and whole: only the comparison was stopped")
        raise
    gguf_receipt.add_evaluation(run.output, found, begun=run.begun)
    return found, ()


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


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written, and how."""

    architecture: str
    n_parameters: int
    notes: tuple[str, ...]
    importance: Made | None = None
    choice: Choice | None = None


# --- of a GGUF file


def _from_gguf(checkpoint: GGUFCheckpoint, run: Run) -> _Written:
    request = run.request
    verify_gguf(request.source)
    quantized = bool(_types_of_matrices(checkpoint) - set(DENSE))
    notes: tuple[str, ...] = (AGAIN,) if quantized and not request.target.is_dense else ()
    if request.is_direct:
        conversion = convert.from_gguf(checkpoint, request.target)
        write_directly(run, conversion)
        return _Written(conversion.architecture, conversion.n_parameters, notes)
    tensors = [OutputTensor(one.name, one.shape, one.type) for one in checkpoint.tensors.values()]
    llama = ByLlama(
        run, request.source, tensors, header_bytes=_header_bytes(checkpoint), requantize=quantized
    )
    llama.check_disk()
    llama.weigh()
    choice = llama.choice()
    if choice.problem is not None:
        with _dense_copy(checkpoint, run) as copy:
            choice = llama.measured(choice, copy)
    llama.quantize(choice)
    n_parameters = sum(tensor.n_elements for tensor in tensors)
    notes += llama.notes
    return _Written(checkpoint.header.architecture, n_parameters, notes, llama.made, choice)


def _types_of_matrices(checkpoint: GGUFCheckpoint) -> set[GGMLType]:
    return {tensor.type for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1}


def _header_bytes(checkpoint: GGUFCheckpoint) -> int:
    """At most what llama.cpp writes before the data: it adds two keys where they are not there."""
    keys = ("general.file_type", "general.quantization_version")
    missing = [key for key in keys if key not in checkpoint.header.fields]
    return checkpoint.header.n_header_bytes + sum(len(key) + 16 for key in missing)


@contextmanager
def _dense_copy(checkpoint: GGUFCheckpoint, run: Run) -> Iterator[Path]:
    """The model in 16 bits, beside the output for a while: to be disturbed."""
    is_large = bool(_types_of_matrices(checkpoint) & {GGMLType.F32, GGMLType.BF16})
    conversion = convert.from_gguf(checkpoint, TARGETS["bf16" if is_large else "f16"])
    header = header_bytes(conversion.metadata, conversion.tensors)
    check_disk(run.output.parent, len(header) + data_bytes(conversion.tensors))
    with partial(run.output) as path:
        path.write_bytes(header)
        fill(path, len(header), conversion, run.progress)
        yield path


# --- of a checkpoint's folder


def _from_folder(checkpoint: SafetensorsCheckpoint, run: Run) -> _Written:
    request = run.request
    conversion = convert.from_folder(request.source, checkpoint, request.target)
    if conversion.is_repacked:
        request.check_repacked()
    if conversion.is_repacked or request.is_direct:
        write_directly(run, conversion)
        written = _Written(conversion.architecture, conversion.n_parameters, conversion.notes)
    else:
        written = _by_way_of_a_dense_file(conversion, run)
    is_packed = isinstance(checkpoint, PackedCheckpoint) and bool(checkpoint.packed)
    if is_packed and not conversion.is_repacked and not request.target.is_dense:
        written = replace(written, notes=(*written.notes, AGAIN))
    return written


def _by_way_of_a_dense_file(conversion: convert.Conversion, run: Run) -> _Written:
    """Write the checkpoint as it is beside the output, and let llama.cpp quantize that."""
    header = header_bytes(conversion.metadata, conversion.tensors)
    size = len(header) + data_bytes(conversion.tensors)
    with partial(run.output) as path:
        # A file of that size without contents: enough for llama.cpp to say what each tensor becomes.
        with path.open("wb") as file:
            file.write(header)
            file.truncate(size)
        llama = ByLlama(run, path, conversion.tensors, header_bytes=len(header))
        llama.check_disk(size)
        llama.weigh(run.request.source)
        fill(path, len(header), conversion, run.progress)
        llama.weigh()
        choice = llama.choice()
        if choice.problem is not None:
            choice = llama.measured(choice, path)
        llama.quantize(choice)
    notes = (*conversion.notes, *llama.notes)
    return _Written(conversion.architecture, conversion.n_parameters, notes, llama.made, choice)
