"""`edgechat models plan`: will a model fit?"""

from typing import TYPE_CHECKING, Annotated

import typer

from edgechat.cli.options import AsJsonOption, ContextOption, GPULayersOption, KVTypeOption
from edgechat.cli.output import json_object, note
from edgechat.cli.tables import table
from edgechat.errors import ExitCode
from edgechat.units import bytes_text

if TYPE_CHECKING:
    from edgechat.library.plan import Choice, PlanReport

PARTS = (
    ("engine", "the engine, with its vocabulary"),
    ("weights", "weights, as in the file"),
    ("repacked", "weights, laid out for this CPU"),
    ("kv", "context"),
    ("compute", "intermediate results"),
    ("output", "logits"),
    ("draft", "draft model"),
)


def plan(
    model: Annotated[str, typer.Argument(help="Path or name of a model; `starter` for the starter.")],
    *,
    ctx: ContextOption = None,
    kv_type: KVTypeOption = None,
    gpu_layers: GPULayersOption = None,
    draft: Annotated[str | None, typer.Option(help="A draft model to run beside it.")] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Say whether a model fits into memory, with what settings, and what takes how much.

    Exit code 0: it fits, or it does with the settings shown. 5: it doesn't.
    """
    from edgechat import settings
    from edgechat.library import plan as library
    from edgechat.library.resolve import resolve

    path = resolve(model)
    asked = settings.load().engine.load(
        path, n_ctx=ctx, kv_type=kv_type, n_gpu_layers=gpu_layers, draft="off"
    )
    report = library.plan(path, asked, draft=resolve(draft) if draft else None)
    if as_json:
        json_object(report)
    else:
        _print(report)
        print(library.line(report))
        for step in report.steps if report.fits else ():
            note(f"gives way: {step}")
        if not report.exact:
            note("estimated from the header: llama.cpp gave no answer")
    if not report.fits:
        raise typer.Exit(int(ExitCode.RESOURCES))


def _print(report: "PlanReport") -> None:
    """One table: each part as asked for, and as planned where that is less."""
    both = report.asked != report.planned
    needs = (report.asked_needs, report.needs) if both else (report.needs,)
    choices = (report.asked, report.planned) if both else (report.planned,)
    rows = [("settings", *(_settings(choice) for choice in choices))]
    for field, name in PARTS:
        sizes = [getattr(one, field) for one in needs]
        if any(sizes):
            rows.append((name, *(bytes_text(size) for size in sizes)))
    rows.append(("peak, as the system shows it", *(bytes_text(one.peak) for one in needs)))
    if any(one.cold for one in needs):
        rows.append(("of it, the system can take back", *(bytes_text(one.cold) for one in needs)))
    rows.append(("must be free", *(bytes_text(one.held) for one in needs)))
    rows.append(
        (
            "free now, less a margin",
            *(bytes_text(max(0, report.available.room)) for _ in needs),
        )
    )
    if any(one.gpu for one in needs):
        rows.append((f"on {report.gpu}", *(bytes_text(one.gpu) for one in needs)))
        rows.append(("free there", *(bytes_text(report.available.vram) for _ in needs)))
    table(("", "asked for", "planned") if both else ("", "needs"), rows)


def _settings(choice: "Choice") -> str:
    parts = [f"{choice.ctx:,} tokens", choice.kv_type, f"batch {choice.batch}"]
    if choice.gpu_layers:
        parts.append(f"{choice.gpu_layers} layers on the GPU")
    return ", ".join(parts)
