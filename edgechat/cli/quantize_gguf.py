"""`edgechat quantize` where it makes a GGUF file: options that go with it, and what is told of the result."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.cli.quantize_layers import LayerOptions, aligned, evaluation_rows
from edgechat.errors import UsageError

if TYPE_CHECKING:
    from quantize.gguf_evaluation import Evaluation
    from quantize.importance import Wanted
    from quantize.plan import Target
    from quantize.request import Result
    from quantize.type_choice import Wishes

OPTIONS = frozenset({"--calibration", "--seed", "--samples", "--sequence-length", "--device"})
"""Those of `LayerOptions` that the importance matrix is made with."""
APART = frozenset({"--resume", "--eval", "--no-eval", "--plot"})
"""Go with all of them, and with none."""

OFF = "off"


def importance_of(
    imatrix: str | None, options: LayerOptions, target: "Target", wishes: "Wishes"
) -> "Wanted | None":
    """The importance matrix that the options ask for; None: there shall be none.

    Args:
        imatrix: what was given: a file, or "off".
        options: those of the other formats.
        target: the type of the file.
        wishes: types of single tensors.

    Raises:
        UsageError: an option doesn't go with --to gguf, or with the others.
    """
    from quantize.importance import Wanted, is_for

    given = [name for name in options.given() if name not in APART]
    for name in given:
        if name not in OPTIONS:
            raise UsageError(f"{name} doesn't go with --to gguf")
    own = options.writes_itself
    if imatrix is not None and not imatrix.strip():
        raise UsageError("--imatrix is empty: give a file, or off")
    if imatrix == OFF:
        if given:
            raise UsageError(f"{given[0]} doesn't go with --imatrix off: nothing is calibrated")
        return None
    is_of_use = is_for(target, wishes)
    if not is_of_use and imatrix is None and not given:
        return None
    if not is_of_use and given == ["--device"]:
        raise UsageError(f"--device doesn't go with --type {target.name}: nothing is computed")
    return Wanted(
        file=None if imatrix is None else Path(os.path.expanduser(imatrix)),
        calibration=None if own or options.calibration is None else Path(options.calibration),
        self_seed=(options.seed or 0) if own else None,
        samples=options.samples,
        length=options.length,
        device=options.device or "auto",
    )


def evaluated_of(options: LayerOptions) -> bool | None:
    """Whether the result is compared with its source; None: where llama.cpp rounds, and it can be done.

    Raises:
        UsageError: a picture of what is not looked at.
        BadRequest, UnsupportedModel: a picture that can't be drawn.
    """
    if options.plot is None:
        return options.evaluate
    from quantize.plot import check_plot

    if options.evaluate is False:
        raise UsageError("--plot doesn't go with --no-eval: of a GGUF file the comparison finds the errors")
    check_plot(options.plot)
    return True


def draw(result: "Result", picture: Path) -> None:
    """Draw the error of each layer, where the comparison went well."""
    from quantize.gguf_receipt import read_layers
    from quantize.plot import plot

    found = result.evaluation
    if found is None:
        return
    # The file's receipt has the mean of each layer alone.
    plot({**(read_layers(result.path) or {}), "layers": found.layers}, picture)


def comparison(found: "Evaluation") -> str:
    """The comparison for a person."""
    error = ("error of the weights", f"{100 * found.mean_error:.3g}% on average")
    return aligned([error, *evaluation_rows(found.figures)])
