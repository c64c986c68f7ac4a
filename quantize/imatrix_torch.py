"""An importance matrix by torch, layer by layer: in memory are one layer and the samples' states.

Nothing is quantized on the way, so each sample goes through each layer once, and of what a matrix is given
only the squares are summed up: the diagonal of a Hessian, without the rest of it. What a layer leaves, these
sums and the samples' states, is kept: a run that was stopped goes on after its last finished layer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from models.decoder import Decoder, DecoderLayer
from models.errors import ModelError
from models.weights import Weights
from quantize.activations import Activations
from quantize.batches import batches, check_finite
from quantize.imatrix import Entry, ImportanceMatrix
from quantize.partial import finish
from quantize.resume import SUMS, LayerRecord, State, Workspace, damaged
from quantize.streaming import aligned

Told = Callable[[float], None]
"""Is told how much is done, from 0 to 1."""


def collect(
    weights: Weights,
    tokens: torch.Tensor,
    workspace: Workspace,
    state: State,
    *,
    device: str = "cpu",
    told: Told,
) -> dict[str, Entry]:
    """Run samples through a model and sum up the squares of what goes into its matrices.

    Args:
        weights: of the model.
        tokens: int64 [N, S].
        workspace: where finished layers are kept.
        state: how far it is; of `state.threads` 0 is as torch has them.
        device: where it is computed.
        told: of the progress.

    Returns:
        By the tensors' names in a GGUF file.

    Raises:
        BrokenModelFile: the model holds NaN or infinity, or makes them.
        BrokenWorkspace: what a stopped run left is damaged.
    """
    n_layers = weights.config.n_layers
    first = len(state.layers)
    entries: dict[str, Entry] = {}
    for index in range(first):
        entries |= _kept(workspace.part(index, SUMS))
    activations = Activations(workspace.folder, (*tokens.shape, weights.config.hidden_size), in_memory=True)
    with torch.no_grad(), _threads(state.threads), closing(activations):
        one = _Pass(weights, tokens, activations, device)
        if first < n_layers:
            one.begin(first)
        for index in range(first, n_layers):
            begun = time.monotonic()
            found = one.layer(index, told)
            _keep(found, workspace.part(index, SUMS))
            entries |= found
            state.layers.append(LayerRecord(index, round(time.monotonic() - begun, 3)))
            workspace.write(state)
            activations.forget(index)
            told((index + 1) / n_layers)
    return entries


def _keep(entries: dict[str, Entry], path: Path) -> None:
    partial = path.with_suffix(".partial")
    ImportanceMatrix(entries).store(partial)
    finish(partial, path)


def _kept(path: Path) -> dict[str, Entry]:
    try:
        return dict(ImportanceMatrix.read(path).entries)
    except (FileNotFoundError, ModelError):
        raise damaged(path) from None


class _Pass:
    """The samples' way through the layers."""

    def __init__(self, weights: Weights, tokens: torch.Tensor, activations: Activations, device: str) -> None:
        self.weights = weights
        self.tokens = tokens
        self.activations = activations
        self.device = device
        self.positions = torch.arange(tokens.shape[1], device=device)
        self.batches = batches(tokens)

    def begin(self, first: int) -> None:
        """Have what goes into the first layer that is to be done."""
        if first:
            self.activations.begin(first)
            return
        decoder = Decoder(self.weights, self.device)
        for start, stop in self.batches:
            self.activations.put(start, decoder.embed(self.tokens[start:stop]))
        self.activations.commit(0)

    def layer(self, index: int, told: Told) -> dict[str, Entry]:
        """Run the samples through a layer."""
        weights = self.weights
        n_layers = weights.config.n_layers
        is_last = index + 1 == n_layers
        layer = DecoderLayer(weights.config, index, aligned(weights.layer(index, self.device)))
        squares = _Squares(layer, self.device)
        for number, (start, stop) in enumerate(self.batches):
            told((index + number / len(self.batches)) / n_layers)
            with layer.observed(squares.observe):
                after = layer.forward(self.activations.get(start, stop).to(self.device), self.positions)
            check_finite(after, weights.checkpoint.path, index)
            if not is_last:
                self.activations.put(start, after)
        if not is_last:
            self.activations.commit(index + 1)
        return _named(weights, index, squares)


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
