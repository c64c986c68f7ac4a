"""How samples go through a layer: some at a time, and what no layer may make of them."""

from pathlib import Path

import torch

from models.errors import BrokenModelFile
from quantize.layer_memory import BATCH_TOKENS


def batches(tokens: torch.Tensor) -> list[tuple[int, int]]:
    """The samples that go through a layer at once: first and behind the last.

    Args:
        tokens: int64 [N, S].
    """
    count, length = tokens.shape
    step = max(1, BATCH_TOKENS // length)
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def check_finite(hidden: torch.Tensor, source: Path, index: int) -> None:
    """Refuse what a layer made, if it is NaN or infinite.

    Args:
        hidden: of the layer `index`, of any shape.
        source: the checkpoint.
        index: of the layer.

    Raises:
        BrokenModelFile: it is.
    """
    if not bool(hidden.isfinite().all()):
        raise BrokenModelFile(
            f"{source}: layer {index} computes NaN or infinity on the calibration text: the checkpoint is "
            "broken, or not of the family that it names"
        )
