"""`edgechat eval RESULT --against SOURCE`: how far a quantized model is from its source."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edgechat.cli.output import answer, json_object
from edgechat.cli.progress_lines import ProgressLines
from edgechat.errors import NotFoundError, UnsupportedError


def compared(
    model: str, against: str, text: str, n_ctx: int, *, threads: int | None, as_json: bool, quiet: bool
) -> None:
    """Compare, and print what was found.

    Args:
        model: the result: a folder or a GGUF file, by its path or as models are named.
        against: its source, named likewise.
        text: to compare on.
        n_ctx: tokens of a window.
        threads: of torch; None or 0: as many as there are cores for us.
        as_json: print one object.
        quiet: show no progress.

    Raises:
        EdgechatError: there is no such model, or torch is not installed.
        QuantizeError, ModelError: the models can't be compared.
    """
    from edgechat.library.resolve import resolve_source

    result, source = resolve_source(model), resolve_source(against)
    try:
        import quantize.compare as comparing
    except ImportError:
        from quantize.errors import to_install

        raise UnsupportedError(f"comparing needs torch and tokenizers: {to_install('torch')}") from None
    from edgechat.cli.quantize_layers import evaluation_rows, free_memory
    from quantize.receipt import figures

    begun = time.monotonic()
    with _progress(quiet=quiet) as told:
        found = comparing.compare_paths(
            source, result, text, length=n_ctx, told=told, free_memory=free_memory, threads=threads or 0
        )
    numbers = figures(found)
    if as_json:
        seconds = round(time.monotonic() - begun, 3)
        json_object({"model": str(result), "source": str(source), **numbers, "seconds": seconds})
        return
    rows = evaluation_rows(numbers)
    width = max(len(name) for name, _ in rows)
    answer("".join(f"{name:{width}}  {value}\n" for name, value in rows))


def draw(result: Path, picture: Path) -> None:
    """Draw the errors that a result's receipt tells of.

    Raises:
        NotFoundError: there is no such folder or file, or it has no receipt.
        QuantizeError, ModelError: there is nothing to draw, or the file can't be drawn.
    """
    from quantize.gguf_receipt import read_layers
    from quantize.plot import plot
    from quantize.receipt import NAME, read_receipt

    receipt = read_layers(result) if result.is_file() else read_receipt(result)
    if receipt is None:
        what = "receipt" if result.is_file() else NAME
        raise NotFoundError(f"no {what} in {result}: --plot draws what edgechat quantized")
    plot(receipt, picture)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, lines elsewhere; nothing where that was asked for."""
    if quiet:
        yield lambda share: None
        return
    if not sys.stderr.isatty():
        yield ProgressLines("comparing")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("comparing", total=1.0)
        yield lambda share: progress.update(task, completed=share)
