"""`edgechat bench`: what a model does on this machine, each figure beside its peer."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from edgechat.bench.plan import FULL, QUICK, Plan
from edgechat.bench.results import Part, Report
from edgechat.cli.failures import told_of
from edgechat.cli.options import AsJsonOption, DraftOption, KVTypeOption, QuietOption, ThreadsOption
from edgechat.cli.output import Status, json_object, note
from edgechat.errors import ExitCode, UsageError

app = typer.Typer()

ALL = ",".join(Part)


@app.command(epilog="Measure when nothing else runs. Each figure is a median of alternating runs.")
def bench(
    model: Annotated[
        str | None, typer.Argument(help="A model's path or name; else the one of the settings.")
    ] = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short runs: a minute or so on a small model.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="PART,...", help=f"Measure these alone, of {', '.join(Part)}.")
    ] = None,
    threads: ThreadsOption = None,
    kv_type: KVTypeOption = None,
    draft: DraftOption = None,
    as_json: AsJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure a model's speed on this machine, beside its peers.

    Decoding and prefill over llama.cpp's own loop, verifying several tokens at once, drafts by kind of text,
    a text longer than the context, the first token of a next turn, and memory. Ctrl-C ends it with what is
    known.
    """
    parts = parse_parts(ALL if only is None else only)
    from edgechat import settings
    from edgechat.bench.run import busy_warning
    from edgechat.library.resolve import resolve_to_load

    config = settings.load()
    load = config.engine.load(
        resolve_to_load(model or config.chat.model), n_threads=threads, kv_type=kv_type, draft=draft
    )
    report = Report(quick=quick)
    if warning := busy_warning():
        report.warnings.append(warning)
        if not quiet:
            note(f"warning: {warning}")
    said = len(report.warnings)
    status = Status(shown=sys.stderr.isatty() and not quiet)
    plan = Plan(load, QUICK if quick else FULL, status.show)
    try:
        asyncio.run(_interruptible(plan, parts, report))
    except Exception as error:
        status.clear()
        if any(getattr(report, part) is not None for part in Part):  # what is known took minutes
            if as_json:
                json_object({**msgspec.to_builtins(report), "error": told_of(error)})
            else:
                _print(report, as_json)
        raise
    status.clear()
    for text in report.warnings[said:] if not (quiet or as_json) else ():
        note(text)
    _print(report, as_json)
    raise typer.Exit(ExitCode.INTERRUPTED if report.interrupted else ExitCode.DONE)


def parse_parts(words: str) -> tuple[Part, ...]:
    """What is to be measured, in the order in which it is.

    Args:
        words: names, separated by commas.

    Raises:
        UsageError: there is no such measurement.
    """
    wanted = [word for word in words.replace(" ", "").split(",") if word]
    for word in wanted:
        if word not in tuple(Part):
            raise UsageError(f"--only {word}: there is no such measurement; give some of {ALL}")
    if not wanted:
        raise UsageError(f"--only names nothing: give some of {ALL}")
    return tuple(part for part in Part if part in wanted)


async def _interruptible(plan: Plan, parts: Sequence[Part], report: Report) -> None:
    """Measure; Ctrl-C ends it, and what was measured stays."""
    from edgechat.bench.run import run

    running = asyncio.create_task(run(plan, parts, report))

    def interrupt() -> None:
        if not report.interrupted:
            report.interrupted = True
            running.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await running
    except asyncio.CancelledError:
        if not report.interrupted:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if report.interrupted:  # it is ending: an impatient key must not spoil that
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        json_object(report)
        return
    from edgechat.cli.bench_tables import show

    show(report)
