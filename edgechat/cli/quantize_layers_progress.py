"""How a run that goes layer by layer is shown."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edgechat.cli.output import note
from edgechat.cli.progress_lines import ProgressLines

if TYPE_CHECKING:
    from quantize.layer_plan import LayerPlan
    from quantize.layer_request import Reporter
    from quantize.streaming import LayerStep


@contextmanager
def reported(*, quiet: bool) -> Iterator["Reporter"]:
    """A bar on a terminal; a line every ten seconds elsewhere; nothing where that was asked for."""
    from quantize.layers import Silent

    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        with _bar() as reporter:
            yield reporter


class _Lines:
    """For a log."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._next = 0.0
        self._compared: ProgressLines | None = None

    def plan(self, plan: "LayerPlan") -> None:
        """Before anything is done."""
        note(plan_line(plan))

    def sampling(self, share: float) -> None:
        """How much the model has written."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.EVERY_S
            note(f"writing calibration text: {100 * share:.0f}%")

    def layer(self, step: "LayerStep") -> None:
        """Where it is."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.EVERY_S
            note(f"layer {step.layer + 1}/{step.n_layers}{_error(step)}")

    def evaluating(self, share: float) -> None:
        """That it has begun, and how far it is."""
        if self._compared is None:
            note("comparing the result with the source")
            self._compared = ProgressLines("comparing")
        self._compared(share)

    def note(self, text: str) -> None:
        """Something that a person should know."""
        note(f"note: {text}")


class _Bar:
    """On a terminal."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._writing: Any = None
        self._task: Any = None
        self._compared: Any = None

    def plan(self, plan: "LayerPlan") -> None:
        """Before anything is done."""
        note(plan_line(plan))

    def sampling(self, share: float) -> None:
        """How much the model has written."""
        if self._writing is None:
            self._writing = self._bar.add_task("write", total=1.0, where="calibration text")
        self._bar.update(self._writing, completed=share)

    def layer(self, step: "LayerStep") -> None:
        """Where it is."""
        if self._task is None:
            self._task = self._bar.add_task("quantize", total=step.n_layers, where="")
        where = f"layer {step.layer + 1}/{step.n_layers}{_error(step)}"
        self._bar.update(self._task, completed=step.layer + step.share, where=where)

    def evaluating(self, share: float) -> None:
        """How far the comparison is."""
        if self._compared is None:
            self._compared = self._bar.add_task("compare", total=1.0, where="with the source")
        self._bar.update(self._compared, completed=share)

    def note(self, text: str) -> None:
        """Something that a person should know."""
        note(f"note: {text}")


def _error(step: "LayerStep") -> str:
    return "" if step.error is None else f", loss {100 * step.error:.2g}%"


@contextmanager
def _bar() -> Iterator[_Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:8}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[where]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, speed_estimate_period=120
    ) as progress:
        yield _Bar(progress)


def plan_line(plan: "LayerPlan") -> str:
    """One line about what a run will take."""
    from quantize.plan import human

    where = "" if plan.in_memory else ", the samples' states on the disk"
    own = f", {_duration(plan.writing_seconds)} of it for its own text" if plan.writing_seconds else ""
    return (
        f"plan: {plan.n_layers} layers, about {human(plan.memory)} of memory ({human(plan.memory_limit)} to "
        f"be had{where}), {human(plan.disk)} of disk, {_duration(plan.seconds)} on an idle machine"
        f"{own}; the result about {human(plan.result)}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
