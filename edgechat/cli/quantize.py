"""`edgechat quantize`: a checkpoint becomes a model that runs here."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgechat.cli.options import AsJsonOption, QuietOption
from edgechat.cli.output import answer, json_object, note
from edgechat.cli.quantize_gguf import comparison, draw, evaluated_of, importance_of
from edgechat.cli.quantize_layers import (
    LayerOptions,
    free_memory,
    record,
    request_of,
    summary,
    try_it,
)
from edgechat.cli.quantize_layers_progress import reported
from edgechat.cli.quantize_progress import shown, stopped_by_sigterm, told_when_stopped
from edgechat.cli.quantize_types import (
    EmbeddingTypeOption,
    OutputTypeOption,
    TargetBpwOption,
    TargetSizeOption,
    TensorTypeOption,
    TypeOption,
    refuse_for,
    show_types,
    target_for,
    types_record,
    wishes_of,
)
from edgechat.errors import UsageError

if TYPE_CHECKING:
    from quantize.layers import LayerRequest
    from quantize.pipeline import Result

app = typer.Typer(rich_markup_mode=None)

FORMATS = ("gguf", "gptq", "awq", "int8")


@app.command(epilog="Then talk to it:  edgechat chat RESULT")
def quantize(
    source: Annotated[
        str,
        typer.Argument(help="A checkpoint's folder (safetensors), a GGUF file, or the name of a model here."),
    ],
    *,
    to: Annotated[str, typer.Option("--to", help="The format: gguf, gptq, awq or int8.")] = "gguf",
    kind: TypeOption = None,
    tensor_type: TensorTypeOption = None,
    output_tensor_type: OutputTypeOption = None,
    token_embedding_type: EmbeddingTypeOption = None,
    target_size: TargetSizeOption = None,
    target_bpw: TargetBpwOption = None,
    imatrix: Annotated[
        str | None,
        typer.Option(
            "--imatrix",
            metavar="FILE|off",
            help="GGUF: an importance matrix, read from FILE, or made and written there if it isn't there; "
            "off: none. Default: one is made for types below 8 bits.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="rtn: rounding without calibration, with --to gptq or int8."),
    ] = None,
    bits: Annotated[
        int | None, typer.Option("--bits", help="2, 3, 4 or 8 with --to gptq; default: 4.")
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size",
            help="Weights that share a scale: 32, 64, 128, or -1 for a row; default: the largest that fits.",
        ),
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--sym/--asym", help="GPTQ with or without zero points; default: --sym.")
    ] = None,
    desc_act: Annotated[
        bool | None, typer.Option("--desc-act", help="GPTQ's groups in order of importance (g_idx).")
    ] = None,
    checkpoint_format: Annotated[
        str | None, typer.Option("--checkpoint-format", help="gptq or gptq_v2; default: gptq.")
    ] = None,
    scheme: Annotated[
        str | None, typer.Option("--scheme", help="INT8: w8a16, or w8a8 for activations too; default: w8a16.")
    ] = None,
    smooth: Annotated[
        bool | None,
        typer.Option(
            "--smooth/--no-smooth",
            help="INT8, w8a8: move outliers to the weights (SmoothQuant); default: --smooth.",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            "--calibration",
            metavar="FILE|self",
            help="A .txt or .jsonl file, or self: what the model writes itself; default: our own mix.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of --calibration self; default: 0.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Calibration samples; default: 128, of GGUF 16.")
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            "--sequence-length", min=16, help="Tokens of a sample; default: 512, or the model's context."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or mps.")] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory", help="Such as 4GB: less sends samples to the disk, more spares GPTQ work."
        ),
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option("--resume", help="Go on with a stopped run: the same options again."),
    ] = None,
    evaluate: Annotated[
        bool | None,
        typer.Option(
            "--eval/--no-eval",
            help="Compare the result with the source; default: --eval, for GGUF below 8 bits, with torch.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the error of each layer: a .svg or .png file."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Where to: a file of GGUF, else a folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it is there.")] = False,
    threads: Annotated[int, typer.Option(min=0, max=512, help="Threads; 0: automatic.")] = 0,
    as_json: AsJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Turn a checkpoint into a model that runs here: its path on stdout, all else on stderr."""
    to = to.lower()
    if to not in FORMATS:
        raise UsageError(f"there is no format {to!r}: give {' or '.join(FORMATS)}")
    options = LayerOptions(
        method=method,
        bits=bits,
        group_size=group_size,
        symmetric=symmetric,
        desc_act=desc_act,
        checkpoint_format=checkpoint_format,
        scheme=scheme,
        smooth=smooth,
        calibration=calibration,
        seed=seed,
        samples=samples,
        length=sequence_length,
        device=device,
        max_memory=max_memory,
        resume=resume,
        evaluate=evaluate,
        plot=plot,
    )
    wishes = wishes_of(
        tensor_type,
        output_type=output_tensor_type,
        embedding_type=token_embedding_type,
        size=target_size,
        bpw=target_bpw,
    )
    from edgechat.library.resolve import resolve_source

    origin = resolve_source(source)
    place = output_place(output, is_file=to == "gguf")
    if to != "gguf":
        refuse_for(to, wishes)
        if kind is not None:
            raise UsageError(f"--type doesn't go with --to {to}: --bits and --group-size do")
        if imatrix is not None:
            raise UsageError(f"--imatrix doesn't go with --to {to}: it is for GGUF files")
        request_layers = request_of(to, origin, options, output=place, force=force, threads=threads)
        _layers(request_layers, plot, as_json=as_json, quiet=quiet)
        return
    from quantize.pipeline import Request, default_target, run

    target = target_for(wishes, kind) or default_target(origin)
    matrix = importance_of(imatrix, options, target, wishes)
    evaluated = evaluated_of(options)
    request = Request(
        origin, target, place, force, threads, matrix, wishes, bool(resume), evaluated, free_memory
    )
    say = _unsaid if quiet else note
    with told_when_stopped(quiet=quiet), stopped_by_sigterm(), shown(quiet=quiet) as progress:
        result = run(request, progress, say)
    if plot is not None:
        draw(result, plot)
    if not quiet:
        if wishes:
            show_types(result)
        _summary(result)
    if as_json:
        json_object(_record(result))
    else:
        answer(f"{result.path}\n")


def _unsaid(text: str) -> None:
    """Nothing."""


def output_place(given: str | None, *, is_file: bool) -> Path | None:
    """Where the result goes, as the person gave it.

    Raises:
        UsageError: it is empty, or a folder by its name that is not there.
    """
    if given is None:
        return None
    if not given.strip():
        raise UsageError("-o is empty: give a file or a folder")
    path = Path(os.path.expanduser(given))
    if is_file and given.endswith(os.sep) and not path.is_dir():
        raise UsageError(f"there is no folder {path}: make it, or give another place with -o")
    return path


def _layers(request: "LayerRequest", picture: Path | None, *, as_json: bool, quiet: bool) -> None:
    from quantize.layers import run
    from quantize.plot import check_plot, plot

    if picture is not None:
        check_plot(picture)
    with told_when_stopped(quiet=quiet), stopped_by_sigterm(), reported(quiet=quiet) as reporter:
        made = run(request, reporter)
    if picture is not None:
        plot(made.receipt.record(), picture)
    if not quiet:
        summary(made)
    if as_json:
        json_object(record(made))
    else:
        answer(f"{made.path}\n")


def _summary(result: "Result") -> None:
    from edgechat.library.plan import to_run
    from quantize.plan import human

    for text in result.notes:
        note(f"note: {text}")
    note(
        f"{result.path.name}: {result.type}, {human(result.n_bytes)}, {result.bits_per_weight:.2f} bits per "
        f"weight (source {human(result.source_bytes)}), {result.seconds:.1f} s"
    )
    if result.evaluation is not None:
        print(comparison(result.evaluation), file=sys.stderr)
    note(to_run(result.path))
    note(try_it(result.path, is_plain=result.is_plain))


def _record(result: "Result") -> dict[str, Any]:
    return {
        "path": str(result.path),
        "architecture": result.architecture,
        "type": result.type,
        "bytes": result.n_bytes,
        "parameters": result.n_parameters,
        "bits_per_weight": round(result.bits_per_weight, 4),
        "source_bytes": result.source_bytes,
        "seconds": round(result.seconds, 3),
        "types": types_record(result),
        "imatrix": None if result.importance is None else dict(result.importance),
        "evaluation": None if result.evaluation is None else result.evaluation.figures,
        "layers": None if result.evaluation is None else result.evaluation.layers,
        "notes": list(result.notes),
    }
