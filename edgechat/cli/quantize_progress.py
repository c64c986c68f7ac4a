"""How the making of a GGUF file is shown, and how a signal ends it."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edgechat.cli.output import note, printable

if TYPE_CHECKING:
    from quantize.progress import Progress, Step


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that nothing unfinished is left."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


@contextmanager
def told_when_stopped(*, quiet: bool) -> Iterator[None]:
    """Where Ctrl-C, a signal or a full disk ended the run: what it can go on from, as the run noted it."""
    from quantize.errors import QuantizeError

    try:
        yield
    except (KeyboardInterrupt, SystemExit, OSError, QuantizeError) as stop:
        for text in () if quiet else getattr(stop, "__notes__", ()):
            note(text)
        raise


@contextmanager
def shown(*, quiet: bool) -> Iterator["Progress"]:
    """A bar on a terminal; a line per stage elsewhere; nothing where that was asked for."""
    from quantize.progress import silent

    if quiet:
        yield silent
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        with _bar() as progress:
            yield progress


class _Lines:
    """For a log: when a stage begins, and where it is every ten seconds."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._stage = ""
        self._next = 0.0

    def __call__(self, step: "Step") -> None:
        from quantize.plan import human

        now = time.monotonic()
        if step.stage != self._stage:
            self._stage, self._next = step.stage, now + self.EVERY_S
            if step.stage in {"write", "calibrate"}:
                note(f"{step.stage}: {step.total} samples, {step.total_bytes} tokens")
            elif step.stage == "measure":
                note(f"{step.stage}: {step.total} measurements")
            elif step.stage == "compare":
                pass  # the run says so itself
            else:
                note(f"{step.stage}: {step.total} tensors, {human(step.total_bytes)}")
        elif now >= self._next:
            self._next = now + self.EVERY_S
            where = "" if step.stage == "compare" else f"{step.index}/{step.total}, "
            note(f"{step.stage}: {where}{100 * step.done_bytes // step.total_bytes}%")


@contextmanager
def _bar() -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Task as BarTask
    from rich.table import Column
    from rich.text import Text

    class Speed(TransferSpeedColumn):
        """Of what is counted in bytes."""

        def render(self, task: BarTask) -> Text:
            counted = task.description not in {"calibrate", "measure", "compare"}
            return super().render(task) if counted else Text("")

    columns = (
        TextColumn("{task.description:9}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[where]}", markup=False),
        Speed(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        TextColumn("{task.fields[name]}", markup=False, table_column=Column(no_wrap=True, width=22)),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(step: "Step") -> None:
            where = f"{step.index}/{step.total}"
            name = printable(step.name)
            if step.stage not in tasks:
                for task in tasks.values():
                    bar.update(task, completed=bar.tasks[task].total, name="")
                tasks[step.stage] = bar.add_task(step.stage, total=step.total_bytes, where=where, name=name)
            bar.update(tasks[step.stage], completed=step.done_bytes, where=where, name=name)

        yield show
