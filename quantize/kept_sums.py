"""What llama.cpp's pass over the samples summed up so far: a file in the workspace, replaced after each.

Sums are kept in the float64 in which they are added up, so that a run that goes on gets the same bits.
"""

from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from quantize.partial import finish
from quantize.resume import Workspace, damaged

if TYPE_CHECKING:
    from pathlib import Path

    from quantize.eval_callback import SquareSums


def path_of(workspace: Workspace) -> "Path":
    """The file."""
    return workspace.folder / "sums.npz"


def keep(sums: "SquareSums", done: int, workspace: Workspace) -> None:
    """Replace what is kept, in one step.

    Args:
        sums: over all samples so far.
        done: how many these are.
        workspace: of the run.
    """
    path = path_of(workspace)
    partial = path.with_suffix(".partial")
    names = list(sums.sums)
    arrays: dict[str, Any] = {"done": done, "names": np.array(names)}
    for i, name in enumerate(names):
        arrays |= {f"sums-{i}": sums.sums[name], f"counts-{i}": sums.counts[name]}
    with partial.open("wb") as file:
        np.savez(file, **arrays)
    finish(partial, path)


def restore(sums: "SquareSums", at_least: int, workspace: Workspace) -> int:
    """Go on from what is kept.

    Args:
        sums: gets it.
        at_least: that many samples must be in it; 0: it may be that nothing is kept.
        workspace: of the run.

    Returns:
        How many samples are in it.

    Raises:
        BrokenWorkspace: it is damaged.
    """
    path = path_of(workspace)
    if not at_least and not path.exists():
        return 0
    try:
        with path.open("rb") as file, np.load(file) as kept:
            done = int(kept["done"])
            for i, name in enumerate(kept["names"].tolist()):
                sums.sums[name] = kept[f"sums-{i}"]
                sums.counts[name] = kept[f"counts-{i}"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, NotImplementedError):
        raise damaged(path) from None
    if done < at_least:
        raise damaged(path)
    return done
