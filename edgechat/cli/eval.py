"""`edgechat eval`: a model's perplexity on a text."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edgechat.cli import text_file
from edgechat.cli.eval_against import compared, draw
from edgechat.cli.options import AsJsonOption, KVTypeOption, QuietOption, ThreadsOption
from edgechat.cli.output import answer, json_object, note
from edgechat.cli.progress_lines import ProgressLines
from edgechat.engine.process.messages import Scored
from edgechat.engine.process.spawn import HostProcess, spawn_host
from edgechat.errors import UsageError
from edgechat.records import LoadSettings

app = typer.Typer(rich_markup_mode=None)

MAX_TEXT_BYTES = 32 * 2**20
DEFAULT_WINDOW = 512
LEAST_CONTEXT = 256
"""llama.cpp makes no smaller one; windows may be."""

OnWindow = Callable[[Scored], None]


class Evaluation(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    model: str
    """As `edgechat models ls` names it."""
    perplexity: float
    stderr: float
    """Standard error of the perplexity."""
    tokens: int
    """Tokens that were scored."""
    text_tokens: int
    """Tokens of the whole text."""
    n_ctx: int
    """Tokens of a window."""
    seconds: float
    """The scoring, without loading the model."""
    title: str = ""
    """What the model calls itself."""


@app.command(
    epilog="Perplexities compare where text, window and tokenizer are the same: two sizes of one model, say."
)
def evaluate(
    model: Annotated[str, typer.Argument(help="A model's path or name; `starter` for the starter model.")],
    *,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="SOURCE", help="Compare with the checkpoint that it was quantized from."
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="FILE", help="A text file, - for a pipe; else: our own.")
    ] = None,
    ctx: Annotated[
        int, typer.Option("--ctx", min=8, max=2**20, help="Tokens of a window; its second half is scored.")
    ] = DEFAULT_WINDOW,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw a quantized model's error of each layer, from its receipt: a .svg or .png file.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    kv_type: KVTypeOption = None,
    as_json: AsJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure a model's perplexity on a text, as llama.cpp's own tool does: lower is better.

    With --against, measure how far a quantized model is from its source, in torch: perplexity of both,
    Kullback-Leibler divergence, and how often both find the same token the likeliest. With --plot alone,
    nothing is measured.
    """
    if plot is not None:
        draw(Path(model), plot)
        if against is None:
            if as_json:
                json_object({"plot": str(plot)})
            else:
                answer(f"{plot}\n")
            return
    content = read_text(text)
    if against is not None:
        if kv_type is not None:
            raise UsageError("--kv-type doesn't go with --against, which computes both models in torch")
        compared(model, against, content, ctx, threads=threads, as_json=as_json, quiet=quiet)
        return
    host = spawn_host()
    try:
        from edgechat import settings
        from edgechat.library.local import shown_name
        from edgechat.library.resolve import resolve_to_load

        path = resolve_to_load(model)
        load = settings.load().engine.load(
            path,
            n_ctx=max(ctx, LEAST_CONTEXT),
            n_threads=threads,
            kv_type=kv_type,
            n_sequences=1,
            draft="off",
        )
        with _progress(quiet=quiet) as on_window:
            result, notes = asyncio.run(_score(load, host, content, ctx, on_window))
    finally:
        host.discard()
    result = msgspec.structs.replace(result, model=shown_name(path))
    if not quiet:
        for line in notes:
            note(line)
    if as_json:
        json_object(result)
    else:
        answer(summary(result) + "\n")


def read_text(path: str | None) -> str:
    """The text to evaluate on.

    Args:
        path: a file, "-" for standard input, None for the text that comes with edgechat.

    Raises:
        NotFoundError: there is no such file, or it can't be read.
        UsageError: it is empty, too long, or not UTF-8.
    """
    if path is None:
        return files("quantize").joinpath("data", "eval.txt").read_text(encoding="utf-8")
    return text_file.read_text(path, MAX_TEXT_BYTES, empty="there is nothing to evaluate on")


def summary(result: Evaluation) -> str:
    """One line about an evaluation."""
    return (
        f"perplexity {result.perplexity:.4f} ± {result.stderr:.4f}  "
        f"({result.model}, {result.tokens} tokens in windows of {result.n_ctx}, {result.seconds:.1f} s)"
    )


async def _score(
    load: LoadSettings, host: HostProcess, text: str, n_ctx: int, on_window: OnWindow
) -> tuple[Evaluation, list[str]]:
    from edgechat.engine.process.client import EngineClient
    from quantize.evaluate import Perplexity

    client = await EngineClient.start(load, host=host)
    try:
        notes = list(client.notes)
        trained = client.info.n_ctx_train
        if n_ctx > trained:
            notes.append(f"windows of {n_ctx} tokens are more than the model was trained on ({trained})")
        started = time.monotonic()
        scores = await client.score(text, n_ctx, on_window=on_window)
        seconds = time.monotonic() - started
        windows = (Perplexity(window.nll, window.nll2, window.n_tokens) for window in scores.windows)
        total = sum(windows, Perplexity())
        result = Evaluation(
            model=client.info.name,
            title=client.info.name,
            perplexity=total.value,
            stderr=total.standard_error,
            tokens=total.n_tokens,
            text_tokens=scores.n_text_tokens,
            n_ctx=n_ctx,
            seconds=round(seconds, 3),
        )
        return result, notes
    finally:
        await client.close()


@contextmanager
def _progress(*, quiet: bool) -> Iterator[OnWindow]:
    """The perplexity so far: a bar on a terminal, lines elsewhere; nothing where that was asked for."""
    from quantize.evaluate import Perplexity

    if quiet:
        yield lambda window: None
        return
    total = Perplexity()

    def so_far(window: Scored) -> str:
        nonlocal total
        total += Perplexity(window.nll, window.nll2, window.n_tokens)
        return f"perplexity {total.value:.3f}"

    if not sys.stderr.isatty():
        lines = ProgressLines("evaluating")
        yield lambda window: lines(window.done / window.total, so_far(window))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("windows"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading the model", total=None)

        def on_window(window: Scored) -> None:
            shown = so_far(window)
            progress.update(task, description=shown, completed=window.done, total=window.total)

        yield on_window
