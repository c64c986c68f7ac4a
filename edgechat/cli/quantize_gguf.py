"""`edgechat quantize` where it makes a GGUF file: which options go with it, and its importance matrix."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.cli.quantize_layers import LayerOptions, free_memory
from edgechat.errors import UsageError

if TYPE_CHECKING:
    from quantize.importance import Wanted
    from quantize.plan import Target
    from quantize.type_choice import Wishes

OPTIONS = frozenset({"--calibration", "--seed", "--samples", "--sequence-length", "--device"})
"""Those of `LayerOptions` that the importance matrix is made with."""
RESUME = "--resume"
"""Goes with all of them, and with none."""

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

    given = [name for name in options.given() if name != RESUME]
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
        free_memory=free_memory,
    )
