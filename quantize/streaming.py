"""A decoder, quantized layer by layer: read, run the samples through and look, quantize, run them through
what came of it, write, drop. Never is more in memory than a layer, what it needs, and the samples' states.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from models.checkpoint import PLAIN
from models.decoder import Decoder, DecoderLayer
from models.errors import BrokenModelFile
from models.mlp import GatedMLP
from models.weights import Weights
from quantize.activations import Activations
from quantize.formats.safetensors import Tensor, write_file
from quantize.layer_methods import Inputs, LayerMethod, Quantized
from quantize.methods.hessian import Hessian
from quantize.partial import finish
from quantize.resume import LayerRecord, State, Workspace

if TYPE_CHECKING:
    from models.checkpoint import StoredTensor

BATCH_TOKENS = 2048
"""That go through a layer at once: enough for the cores, and what lies between is small."""

Share = Callable[[float], None]
"""Is told how much of a layer is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A layer is begun, or a part of it is done."""

    layer: int
    """From 0."""
    n_layers: int
    share: float
    """Of this layer, 0 to 1."""
    error: float | None
    """Mean relative error of the last layer that is done."""


class Streamer:
    """One run over the layers of a model."""

    def __init__(
        self,
        weights: Weights,
        method: LayerMethod,
        workspace: Workspace,
        state: State,
        tokens: torch.Tensor | None,
        *,
        device: str = "cpu",
        in_memory: bool = True,
        told: Callable[[LayerStep], None] = lambda step: None,
    ) -> None:
        """
        Args:
            weights: of the model.
            method: what is made of each layer.
            workspace: where finished layers are kept.
            state: how far it is.
            tokens: int64 [N, S]; None: the method reads no text.
            device: where it is computed.
            in_memory: keep the states of all samples there.
            told: of the progress.
        """
        self.decoder = Decoder(weights, device)
        self.weights = weights
        self.method = method
        self.workspace = workspace
        self.state = state
        self.tokens = tokens
        self.device = device
        self.told = told
        self.activations: Activations | None = None
        if tokens is not None:
            shape = (*tokens.shape, weights.config.hidden_size)
            self.activations = Activations(workspace.folder, shape, in_memory=in_memory)
        self.positions = torch.arange(0 if tokens is None else tokens.shape[1], device=device)

    def run(self) -> None:
        """All layers that are not done yet.

        Raises:
            BrokenModelFile: the source holds NaN or infinity, or makes them.
        """
        n_layers = self.weights.config.n_layers
        first = len(self.state.layers)
        try:
            if first < n_layers:
                self._prepare(first)
            for index in range(first, n_layers):
                self._layer(index)
        finally:
            if self.activations is not None:
                self.activations.close()

    def _prepare(self, first: int) -> None:
        """What goes into the first layer that is to be done."""
        if self.activations is None or self.tokens is None:
            return
        if first:
            self.activations.begin(first)
            return
        for start, stop in self._batches():
            hidden = self.decoder.embed(self.tokens[start:stop])
            if not bool(hidden.isfinite().all()):
                raise BrokenModelFile(
                    f"{self.weights.checkpoint.path}: the embedding holds NaN or infinity: "
                    "get the checkpoint again"
                )
            self.activations.put(start, hidden)
        self.activations.commit(0)

    def _layer(self, index: int) -> None:
        begun = time.monotonic()
        n_layers = self.weights.config.n_layers
        errors = [one.error for one in self.state.layers[-1].matrices] if self.state.layers else []
        error = sum(errors) / len(errors) if errors else None

        def share(done: float) -> None:
            self.told(LayerStep(index, n_layers, done, error))

        share(0.0)
        config = self.weights.config
        tensors = aligned(self.weights.layer(index, self.device))
        layer = DecoderLayer(config, index, tensors)
        inputs = self._look(layer, share)
        share(0.5)
        del layer
        quantized = self.method.quantize(tensors, config, index, inputs)
        del inputs
        share(0.7)
        self._write(index, quantized)
        if self.activations is not None and index + 1 < n_layers:
            self._forward(index, DecoderLayer(config, index, tensors), share)
        seconds = time.monotonic() - begun
        self.state.layers.append(LayerRecord(index, round(seconds, 3), tuple(quantized.records)))
        self.workspace.write(self.state)
        if self.activations is not None:
            self.activations.forget(index)
        share(1.0)

    def _batches(self) -> list[tuple[int, int]]:
        if self.tokens is None:
            return []
        count, length = self.tokens.shape
        step = max(1, BATCH_TOKENS // length)
        return [(start, min(start + step, count)) for start in range(0, count, step)]

    def _look(self, layer: DecoderLayer, share: Share) -> list[Inputs]:
        """Run the samples through the layer to see what each matrix is given."""
        observer = _Observer(layer, self.device, magnitudes=self.method.magnitudes)
        if self.activations is not None:
            batches = self._batches()
            with layer.observed(observer.observe):
                for number, (start, stop) in enumerate(batches, 1):
                    hidden = self.activations.get(start, stop).to(self.device)
                    with suppress(_SeenAll):
                        layer.forward(hidden, self.positions)
                    share(0.5 * number / len(batches))
        return observer.inputs()

    def _forward(self, index: int, layer: DecoderLayer, share: Share) -> None:
        """Run the samples through the quantized layer."""
        if self.activations is None:
            return
        batches = self._batches()
        for number, (start, stop) in enumerate(batches, 1):
            hidden = layer.forward(self.activations.get(start, stop).to(self.device), self.positions)
            if not bool(hidden.isfinite().all()):
                raise BrokenModelFile(
                    f"{self.weights.checkpoint.path}: layer {index} computes NaN or infinity on the "
                    "calibration text: the checkpoint is broken, or not of the family that it names"
                )
            self.activations.put(start, hidden)
            share(0.7 + 0.3 * number / len(batches))
        self.activations.commit(index + 1)

    def _write(self, index: int, quantized: Quantized) -> None:
        """The layer's tensors, quantized or as they were."""
        names = self.weights.names
        if names is None:
            raise TypeError("a GGUF file has no layers under Hugging Face's names")
        plain = f"model.layers.{index}."
        prefix = names.name(plain)
        tensors: dict[str, Tensor] = {}
        for name, stored in self.weights.checkpoint.tensors.items():
            if name.startswith(prefix) and name.removeprefix(prefix) not in quantized.replaced:
                tensors[name] = as_stored(self.weights, stored)
        tensors |= {prefix + name: tensor for name, tensor in quantized.tensors.items()}
        part = self.workspace.part(index)
        partial = part.with_suffix(".partial")
        write_file(partial, dict(sorted(tensors.items())))
        finish(partial, part)


def as_stored(weights: Weights, stored: "StoredTensor") -> Tensor:
    """A tensor of the source as it is; one in a form that only some can read, in float32."""
    if stored.type in PLAIN:
        rows = weights.checkpoint.stored_rows(stored.name)
        return Tensor(rows.reshape(stored.shape), "BF16" if rows.dtype == np.uint16 else "")
    return Tensor(weights.checkpoint.rows(stored.name).reshape(stored.shape))


def aligned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors in torch's own memory: numpy's begins anywhere, and how sums are grouped depends on that,
    while a run must give the same bits each time."""
    for name, tensor in tensors.items():
        if tensor.data_ptr() % 64:
            tensors[name] = tensor.clone()
    return tensors


class _SeenAll(Exception):
    """The last matrix's input is seen: what it would make of it nobody needs."""


class _Observer:
    """Collects what goes into each matrix."""

    def __init__(self, layer: DecoderLayer, device: str, *, magnitudes: bool) -> None:
        self.device = device
        self.magnitudes = magnitudes
        self.groups = layer.groups
        self.leaders = {group[0] for group in layer.groups}
        """Those of a group are given the same: one of them is looked at."""
        self.hessians: dict[str, Hessian] = {}
        self.final = layer.groups[-1][0] if isinstance(layer.mlp, GatedMLP) else ""

    def observe(self, name: str, x: torch.Tensor) -> None:
        """Count an input."""
        if name in self.leaders:
            if name not in self.hessians:
                self.hessians[name] = Hessian(x.shape[-1], device=self.device, magnitudes=self.magnitudes)
            self.hessians[name].add(x)
        if name == self.final:
            raise _SeenAll

    def inputs(self) -> list[Inputs]:
        """All matrices by what they are given."""
        return [Inputs(tuple(group), self.hessians.pop(group[0], None)) for group in self.groups]
