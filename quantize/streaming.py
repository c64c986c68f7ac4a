"""A decoder, quantized layer by layer: read, run the samples through and look, quantize, write, drop. Never
is more in memory than a layer, what it needs, and the samples' states.

The samples go through a layer once. Where a group of matrices can be quantized without a look at those that
come after it (GPTQ), it is when its inputs are known, and what comes after sees what it then makes of them.
Else (AWQ, whose scales go into the group before) all are looked at first, and the next layer sees what the
source's layer made: the same states as in the source, as in the papers' own code.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from models.checkpoint import PLAIN
from models.decoder import Decoder, DecoderLayer
from models.errors import BrokenModelFile
from models.linear import Linear
from models.weights import Weights
from quantize.activations import Activations
from quantize.batches import batches, check_finite
from quantize.formats.safetensors import Tensor, write_file
from quantize.layer_method import Inputs, LayerMethod, Quantized
from quantize.looking import Kept, Observer, SeenAll
from quantize.methods.hessian import Hessian
from quantize.partial import finish
from quantize.resume import LayerRecord, State, Workspace
from quantize.stages import Costs, Stages

if TYPE_CHECKING:
    from models.checkpoint import StoredTensor

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
        kept: int = 0,
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
            kept: bytes of what lies between a layer's matrices that may be kept; what is not is computed
                twice. The bytes of the result don't depend on it.
            told: of the progress.
        """
        self.decoder = Decoder(weights, device)
        self.weights = weights
        self.method = method
        self.workspace = workspace
        self.state = state
        self.tokens = tokens
        self.device = device
        # A GPU's memory is short, and computing twice costs it little.
        self.room = torch.empty(kept // torch.float32.itemsize) if kept and device == "cpu" else None
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
        if self.activations is not None and self.method.sequential:
            quantized = self._in_stages(layer, tensors, share)
        else:
            inputs = self._look(layer, share)
            quantized = self.method.quantize(tensors, config, index, inputs)
            del inputs
        self._write(index, quantized)
        seconds = time.monotonic() - begun
        self.state.layers.append(LayerRecord(index, round(seconds, 3), tuple(quantized.records)))
        self.workspace.write(self.state)
        if self.activations is not None:
            self.activations.forget(index)
        share(1.0)

    def _batches(self) -> list[tuple[int, int]]:
        return [] if self.tokens is None else batches(self.tokens)

    def _look(self, layer: DecoderLayer, share: Share) -> list[Inputs]:
        """Run the samples through the layer to see what each matrix is given, and what the next layer is."""
        method = self.method
        observer = Observer(layer, self.device, magnitudes=method.magnitudes, sampled=method.sampled)
        if self.activations is not None:
            observer.final = observer.final if self._is_last(layer) else ""
            batches = self._batches()
            with layer.observed(observer.observe):
                for number, (start, stop) in enumerate(batches, 1):
                    before = self._get(start, stop)
                    observer.begins(before)
                    with suppress(SeenAll):
                        hidden = layer.forward(before, self.positions)
                        if not self._is_last(layer):
                            self._put(layer, start, hidden)
                    share(0.8 * number / len(batches))
            self._commit(layer)
        return observer.inputs()

    def _in_stages(self, layer: DecoderLayer, tensors: dict[str, torch.Tensor], share: Share) -> Quantized:
        """Run the samples through the layer, and quantize each group of matrices before it multiplies."""
        stages = Stages(layer, self.positions)
        done = Quantized()
        first, last = stages.attention_groups

        def quantize(inputs: list[Inputs], shared: float) -> None:
            found = self.method.quantize(tensors, layer.config, layer.index, inputs)
            done.tensors |= found.tensors
            done.replaced |= found.replaced
            done.records += found.records
            for name in (name for one in inputs for name in one.names):
                layer.linears[name] = Linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
            share(shared)

        quantize([self._seen(first, stages.attention_input)], 0.1)
        mixed = Kept(stages.mixed, self.room)
        quantize([self._seen(last, mixed.make, self._costs(stages, last[0]))], 0.3)
        between = Hessian(layer.config.hidden_size, device=self.device)
        for start, stop in self._batches():
            hidden = self._get(start, stop)
            hidden = stages.after_attention(hidden, mixed.take(hidden))
            if not stages.has_experts:
                between.add(stages.mlp_input(hidden))
            self._held(start, hidden)
        self._turn()
        if stages.has_experts:
            self._experts(stages, quantize)
        else:
            first, last = stages.mlp_groups
            quantize([Inputs(tuple(first), between)], 0.5)
            gated = Kept(stages.gated, self.room)
            quantize([self._seen(last, gated.make, self._costs(stages, last[0]))], 0.9)
            if not self._is_last(layer):
                for start, stop in self._batches():
                    hidden = self._get(start, stop)
                    self._put(layer, start, stages.after_gated(hidden, gated.take(hidden)))
        self._commit(layer)
        return done

    def _experts(self, stages: Stages, quantize: Callable[[list[Inputs], float], None]) -> None:
        """A mixture's matrices: all are looked at first, for each sees other tokens."""
        layer = stages.layer
        observer = Observer(layer, self.device, magnitudes=False)
        with layer.observed(observer.observe):
            for start, stop in self._batches():
                stages.after_experts(self._get(start, stop))
        names = {name for group in stages.mlp_groups for name in group}
        quantize([one for one in observer.inputs() if names.issuperset(one.names)], 0.9)
        if not self._is_last(layer):
            for start, stop in self._batches():
                self._put(layer, start, stages.after_experts(self._get(start, stop)))

    def _seen(
        self,
        group: Sequence[str],
        made: Callable[[torch.Tensor], torch.Tensor],
        costs: Costs | None = None,
    ) -> Inputs:
        """What a group of matrices is given; `costs` tells, of the states and of that, what errors cost."""
        hessian: Hessian | None = None
        for start, stop in self._batches():
            hidden = self._get(start, stop)
            x = made(hidden)
            hessian = hessian or Hessian(x.shape[-1], device=self.device)
            hessian.add(x, None if costs is None else costs(hidden, x))
        return Inputs(tuple(group), hessian)

    def _costs(self, stages: Stages, matrix: str) -> Costs | None:
        return stages.costs(matrix) if self.method.weighs else None

    def _is_last(self, layer: DecoderLayer) -> bool:
        return layer.index + 1 == self.weights.config.n_layers

    def _get(self, start: int, stop: int) -> torch.Tensor:
        if self.activations is None:
            raise RuntimeError("no samples")
        return self.activations.get(start, stop).to(self.device)

    def _held(self, start: int, hidden: torch.Tensor) -> None:
        if self.activations is not None:
            self.activations.hold(start, hidden)

    def _turn(self) -> None:
        if self.activations is not None:
            self.activations.turn()

    def _put(self, layer: DecoderLayer, start: int, hidden: torch.Tensor) -> None:
        """What the next layer is given."""
        if self.activations is None:
            return
        check_finite(hidden, self.weights.checkpoint.path, layer.index)
        self.activations.put(start, hidden)

    def _commit(self, layer: DecoderLayer) -> None:
        if self.activations is not None and not self._is_last(layer):
            self.activations.commit(layer.index + 1)

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
