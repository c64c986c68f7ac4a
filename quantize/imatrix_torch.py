"""An importance matrix by torch, layer by layer: in memory are one layer and the samples' states.

Nothing is quantized on the way, so each sample goes through each layer once, and of what a matrix is given
only the squares are summed up: the diagonal of a Hessian, without the rest of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from models.decoder import Decoder, DecoderLayer
from models.errors import BrokenModelFile
from models.weights import Weights
from quantize.imatrix import Entry

BATCH_TOKENS = 2048
"""That go through a layer at once."""

Told = Callable[[float], None]
"""Is told how much is done, from 0 to 1."""


def collect(
    weights: Weights, tokens: torch.Tensor, *, device: str = "cpu", threads: int = 0, told: Told
) -> dict[str, Entry]:
    """Run samples through a model and sum up the squares of what goes into its matrices.

    Args:
        weights: of the model.
        tokens: int64 [N, S].
        device: where it is computed.
        threads: 0: as torch has them.
        told: of the progress.

    Returns:
        By the tensors' names in a GGUF file.

    Raises:
        BrokenModelFile: the model holds NaN or infinity, or makes them.
    """
    decoder = Decoder(weights, device)
    n_layers = weights.config.n_layers
    step = max(1, BATCH_TOKENS // tokens.shape[1])
    positions = torch.arange(tokens.shape[1], device=device)
    entries: dict[str, Entry] = {}
    with torch.no_grad(), _threads(threads):
        states = [decoder.embed(part).cpu() for part in tokens.split(step)]
        for index in range(n_layers):
            layer = decoder.layer(index)
            squares = _Squares(layer, device)
            for number, state in enumerate(states):
                with layer.observed(squares.observe):
                    after = layer.forward(state.to(device), positions)
                if not bool(after.isfinite().all()):
                    raise BrokenModelFile(
                        f"{weights.checkpoint.path}: layer {index} computes NaN or infinity on the "
                        "calibration text: the checkpoint is broken, or not of the family that it names"
                    )
                states[number] = after.cpu()
                told((index + (number + 1) / len(states)) / n_layers)
            entries |= _named(weights, index, squares)
            del layer
    return entries


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Squares:
    """Sums of squares of what goes into each matrix of a layer."""

    def __init__(self, layer: DecoderLayer, device: str) -> None:
        self.leader = {name: group[0] for group in layer.groups for name in group}
        """Those of a group are given the same: one of them is looked at."""
        self.device = device
        self.sums: dict[str, torch.Tensor] = {}
        """By leader, float32 [columns]: each of the few batches is summed up by itself first."""
        self.counts: dict[str, int] = {}

    def observe(self, name: str, x: torch.Tensor) -> None:
        """Count an input [..., columns]."""
        if self.leader[name] != name:
            return
        rows = x.reshape(-1, x.shape[-1])
        summed = torch.linalg.vecdot(rows, rows, dim=0)
        self.sums[name] = self.sums[name] + summed if name in self.sums else summed
        self.counts[name] = self.counts.get(name, 0) + len(rows)

    def of(self, name: str) -> tuple[npt.NDArray[np.float32], int] | None:
        """Sums [columns] and how many inputs; None: nothing came by."""
        leader = self.leader[name]
        if leader not in self.sums:
            return None
        return self.sums[leader].cpu().numpy(), self.counts[leader]


def _named(weights: Weights, index: int, squares: _Squares) -> dict[str, Entry]:
    """Under the names of a GGUF file, experts stacked as there."""
    prefix = f"model.layers.{index}."
    entries = {}
    for rule in weights.family.layer(weights.config, index):
        names = [source.removeprefix(prefix).removesuffix(".weight") for source in rule.sources]
        if len(rule.shape) > 1 and names[0] in squares.leader:
            entries[rule.target] = _entry([squares.of(name) for name in names], rule.shape[-1])
    return entries


def _entry(found: Sequence[tuple[npt.NDArray[np.float32], int] | None], columns: int) -> Entry:
    nothing = np.zeros(columns, np.float32)
    return Entry(
        np.stack([nothing if one is None else one[0] for one in found]),
        np.array([0 if one is None else one[1] for one in found], np.float32),
    )
