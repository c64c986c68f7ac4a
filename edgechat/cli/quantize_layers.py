"""`edgechat quantize` where it makes GPTQ, AWQ and INT8: options to a request, progress, the table."""

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgechat.cli.output import note
from edgechat.errors import UsageError

if TYPE_CHECKING:
    from quantize.layer_plan import LayerPlan
    from quantize.layers import LayerRequest, LayerResult, Reporter
    from quantize.streaming import LayerStep

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """What was given; None: nothing was."""

    method: str | None = None
    bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    desc_act: bool | None = None
    checkpoint_format: str | None = None
    scheme: str | None = None
    smooth: bool | None = None
    calibration: str | None = None
    seed: int | None = None
    samples: int | None = None
    length: int | None = None
    device: str | None = None
    max_memory: str | None = None
    resume: bool | None = None
    evaluate: bool | None = None
    plot: Path | None = None

    def given(self) -> list[str]:
        """The options that were given, as they are typed."""
        names = {"length": "sequence-length", "symmetric": "sym", "evaluate": "eval"}
        return [
            "--" + names.get(name, name).replace("_", "-")
            for name in self.__slots__
            if getattr(self, name) is not None
        ]


def request_of(
    to: str, source: Path, options: LayerOptions, *, output: Path | None, force: bool, threads: int
) -> "LayerRequest":
    """The request that the options make.

    Raises:
        UsageError: there is no such method, device or amount of memory.
        QuantizeError: the options contradict each other.
    """
    from quantize.calibration import SAMPLES
    from quantize.layers import LayerRequest
    from quantize.recipe import METHODS, Format, Method, Order, Recipe, Scheme

    form = Format(to)
    _only_for(form is Format.GPTQ, to, options, "sym", "desc-act", "checkpoint-format")
    _only_for(form is Format.INT8, to, options, "scheme", "smooth")
    if options.desc_act and options.method == "rtn":
        raise UsageError("--desc-act is an order of GPTQ's: it doesn't go with --method rtn")
    own = options.calibration == "self"
    if options.seed is not None and not own:
        raise UsageError("--seed is of what the model writes itself: it goes with --calibration self")
    recipe = Recipe(
        format=form,
        method=METHODS[form][0] if options.method is None else _one_of(Method, "--method", options.method),
        bits=options.bits if options.bits is not None else 8 if form is Format.INT8 else 4,
        group_size=options.group_size,
        symmetric=True if options.symmetric is None else options.symmetric,
        order=Order.CLASSIC if options.desc_act else Order.STATIC,
        checkpoint_format=options.checkpoint_format or "gptq",
        scheme=_one_of(Scheme, "--scheme", options.scheme) if options.scheme else Scheme.W8A16,
        smooth=bool(options.smooth),
    )
    return LayerRequest(
        source=source,
        recipe=recipe,
        output=output,
        calibration=None if own or options.calibration is None else Path(options.calibration).expanduser(),
        self_seed=(options.seed or 0) if own else None,
        samples=SAMPLES if options.samples is None else options.samples,
        length=options.length,
        device=_device(options.device or "auto"),
        resume=bool(options.resume),
        force=force,
        max_memory=None if options.max_memory is None else _max_memory(options.max_memory),
        threads=threads,
        evaluated=options.evaluate is not False,
        free_memory=free_memory,
    )


def free_memory() -> int:
    """What the planner of models would let be taken."""
    from edgechat.library.ladder import MARGIN
    from edgechat.library.plan import main_memory

    return max(0, main_memory().ram - MARGIN)


def _only_for(fits: bool, to: str, options: LayerOptions, *names: str) -> None:
    for name in names:
        if not fits and f"--{name}" in options.given():
            raise UsageError(f"--{name} doesn't go with --to {to}")


def _one_of(kind: Any, option: str, value: str) -> Any:
    try:
        return kind(value.lower())
    except ValueError:
        raise UsageError(f"there is no {option} {value!r}: give {' or '.join(kind)}") from None


def _device(name: str) -> str:
    if name not in DEVICES:
        raise UsageError(f"there is no device {name!r}: give {' or '.join(DEVICES)}")
    from quantize.devices import usable_device

    return usable_device(name)


def _max_memory(text: str) -> int:
    from quantize.budget import amount

    n_bytes = amount(text)
    if n_bytes is None:
        raise UsageError(f"--max-memory {text!r}: an amount such as 4GB or 800MB belongs there")
    return n_bytes


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
        self._evaluating = False

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
        """That it has begun."""
        if not self._evaluating:
            self._evaluating = True
            note("comparing the result with the source")

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


def table(result: "LayerResult") -> str:
    """The receipt for a person."""
    from quantize.plan import human

    receipt = result.receipt
    rows = [
        ("size", f"{human(receipt.bytes)}, source {human(receipt.source['bytes'])}"),
        ("bits per weight", f"{receipt.bits_per_weight:.2f}"),
        (f"error of the {receipt.error_of}", f"{100 * receipt.mean_error:.3g}% on average"),
        ("time", f"{receipt.seconds:.0f} s"),
        ("peak memory", human(receipt.peak_memory)),
    ]
    if receipt.evaluation is not None:
        rows += evaluation_rows(receipt.evaluation)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:{width}}  {value}" for name, value in rows)


def evaluation_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """What a comparison with the source says."""
    before, after = figures["source_perplexity"], figures["perplexity"]
    return [
        ("perplexity", f"{after:.3f}, source {before:.3f} ({100 * (after / before - 1):+.1f}%)"),
        (
            "KL divergence",
            f"{figures['mean_kl']:.4f} on average, 99% under {figures['p99_kl']:.3g}",
        ),
        ("same likeliest", f"{100 * figures['top1']:.1f}% of {figures['tokens']} tokens"),
    ]


def summary(result: "LayerResult") -> None:
    """Tell a person what came out."""
    rescued = result.receipt.rescued
    for text in rescued[:5]:
        note(f"note: {text}")
    if len(rescued) > 5:
        note(f"note: {len(rescued) - 5} more such matrices: see the receipt")
    print(table(result), file=sys.stderr)
    note(f'Try it: edgechat ask {shlex.quote(str(result.path))} "Why is the sky blue?"')


def record(result: "LayerResult") -> dict[str, Any]:
    """What `--json` prints."""
    import json

    return {"path": str(result.path), "notes": list(result.notes), **json.loads(result.receipt.to_json())}
