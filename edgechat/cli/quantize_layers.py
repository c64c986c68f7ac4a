"""`edgechat quantize` where it makes GPTQ, AWQ and INT8: options to a request, and the table."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgechat.cli.output import note
from edgechat.errors import UsageError

if TYPE_CHECKING:
    from quantize.layers import LayerRequest, LayerResult

_OFF = {"symmetric": "--asym", "evaluate": "--no-eval", "smooth": "--no-smooth"}
"""What turns an option off."""

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
        return [self.typed(name) for name in self.__slots__ if getattr(self, name) is not None]

    def typed(self, name: str) -> str:
        """The option of a field, as it is typed for the value that it has."""
        if getattr(self, name) is False and name in _OFF:
            return _OFF[name]
        names = {"length": "sequence-length", "symmetric": "sym", "evaluate": "eval"}
        return "--" + names.get(name, name).replace("_", "-")

    @property
    def writes_itself(self) -> bool:
        """Whether the model writes the calibration text.

        Raises:
            UsageError: it does not, and a seed was given.
        """
        own = self.calibration == "self"
        if self.seed is not None and not own:
            raise UsageError("--seed is of what the model writes itself: it goes with --calibration self")
        return own


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
    _only_for(form is Format.GPTQ, to, options, "symmetric", "desc_act", "checkpoint_format")
    _only_for(form is Format.INT8, to, options, "scheme", "smooth")
    own = options.writes_itself
    recipe = Recipe(
        format=form,
        method=METHODS[form][0] if options.method is None else _one_of(Method, "--method", options.method),
        bits=options.bits if options.bits is not None else 8 if form is Format.INT8 else 4,
        group_size=options.group_size,
        symmetric=True if options.symmetric is None else options.symmetric,
        order=Order.CLASSIC if options.desc_act else Order.STATIC,
        checkpoint_format=options.checkpoint_format or "gptq",
        scheme=_one_of(Scheme, "--scheme", options.scheme) if options.scheme else Scheme.W8A16,
        smooth=_smooth(options),
    )
    if options.desc_act and recipe.method is Method.RTN:
        raise UsageError("--desc-act is an order of GPTQ's: it doesn't go with --method rtn")
    for name in ("calibration", "samples", "length"):
        if not recipe.reads_text and getattr(options, name) is not None:
            raise UsageError(
                f"{options.typed(name)} doesn't go with --method {recipe.method}, which rounds without a text"
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


def _smooth(options: LayerOptions) -> bool:
    """As it was said; else wherever activations are rounded and a text is read."""
    if options.smooth is not None:
        return options.smooth
    method, scheme = (options.method or "").lower(), (options.scheme or "").lower()
    return scheme == "w8a8" and method != "rtn"


def free_memory() -> int:
    """What the planner of models would let be taken."""
    from edgechat import hardware

    memory = hardware.memory()
    return memory.room


def _only_for(fits: bool, to: str, options: LayerOptions, *names: str) -> None:
    for name in names:
        if not fits and getattr(options, name) is not None:
            raise UsageError(f"{options.typed(name)} doesn't go with --to {to}")


def _one_of(kind: Any, option: str, value: str) -> Any:
    try:
        return kind(value.lower())
    except ValueError:
        raise UsageError(f"there is no {option} {value!r}: give {' or '.join(kind)}") from None


def _device(name: str) -> str:
    if name not in DEVICES:
        raise UsageError(f"there is no device {name!r}: give {' or '.join(DEVICES)}")
    return name


def _max_memory(text: str) -> int:
    from models.sizes import amount, lacks_unit

    if meant := lacks_unit(text):
        raise UsageError(f"--max-memory {text} lacks a unit: give {meant}, or whatever you mean")
    n_bytes = amount(text)
    if n_bytes is None:
        raise UsageError(f"--max-memory {text!r}: an amount such as 4GB or 800MB belongs there")
    return n_bytes


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
    kept, of = receipt.keeping_inputs
    if kept:
        rows.append(("inputs in 16 bits", f"of {kept} of {of} matrices: in 8 they would cost the most"))
    if receipt.evaluation is not None:
        rows += evaluation_rows(receipt.evaluation)
    return aligned(rows)


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values below each other."""
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
    note(try_it(result.path, is_plain=result.is_plain))


def try_it(path: Path, *, is_plain: bool) -> str:
    """What to do next; `is_plain`: the model continues texts, and answers no questions."""
    from models import tokenizer

    if path.is_dir() and not tokenizer.is_in(path):
        return f"note: the source has no tokenizer: before you talk to {path}, put its tokenizer.json there"
    rest = '--raw "The sky is blue because"' if is_plain else '"Why is the sky blue?"'
    return f"Try it: edgechat ask {shlex.quote(str(path))} {rest}"


def record(result: "LayerResult") -> dict[str, Any]:
    """What `--json` prints."""
    import json

    return {"path": str(result.path), "notes": list(result.notes), **json.loads(result.receipt.to_json())}
