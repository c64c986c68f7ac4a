"""The decoder of all families in torch, layer by layer: one layer's weights are in memory at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from models.attention import Attention, KeyValueCache
from models.config import ModelConfig, Norms
from models.linear import Linears, Observe
from models.mlp import GatedMLP, activation
from models.moe import MixtureOfExperts
from models.norm import RMSNorm
from models.weights import Weights

VOCABULARY_CHUNK = 8192
"""Rows of the output matrix that are in float32 at a time."""

NORM_NAMES: dict[Norms, tuple[str, str, str, str]] = {
    Norms.BEFORE: ("input_layernorm", "", "post_attention_layernorm", ""),
    Norms.AROUND: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    Norms.AFTER: ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
}
"""Of the norms before and after attention, before and after the MLP; "": none there."""


class DecoderLayer:
    """Attention and an MLP (or experts), each added to what goes by."""

    def __init__(self, config: ModelConfig, index: int, weights: Mapping[str, torch.Tensor]) -> None:
        """
        Args:
            config: of the model.
            index: which of its layers.
            weights: under Hugging Face's names without "model.layers.N.", such as "mlp.up_proj.weight".
        """
        self.config = config
        self.index = index
        self.attention = Attention(config, index, weights)
        act = activation(config.activation)
        self.mlp: GatedMLP | MixtureOfExperts
        if config.experts is not None and config.expert_layers[index]:
            self.mlp = MixtureOfExperts(act, config.experts, weights["mlp.gate.weight"])
        else:
            self.mlp = GatedMLP(act, "mlp", fused=config.layout.fused)
        self.groups = [*self.attention.groups(), *self.mlp.groups()]
        """The names of all matrices in order; those of a group see the same input."""
        self.linears = Linears(weights, [name for group in self.groups for name in group])
        self.norms = {
            name: RMSNorm(weights[f"{name}.weight"], config.norm_eps, adds_one=config.layout.norm_adds_one)
            for name in NORM_NAMES[config.layout.norms]
            if name
        }

    def forward(
        self, hidden: torch.Tensor, positions: torch.Tensor, cache: KeyValueCache | None = None
    ) -> torch.Tensor:
        """What goes by, after this layer.

        Args:
            hidden: float32 [B, S, D].
            positions: int64 [S], or [B, S].
            cache: where there were positions before these.

        Returns:
            float32 [B, S, D]; `hidden` is left as it is.
        """
        before, after, before_mlp, after_mlp = NORM_NAMES[self.config.layout.norms]
        scale = self.config.residual_multiplier
        added = self.attention.forward(self.linears, self._norm(before, hidden), positions, cache)
        hidden = torch.add(hidden, self._norm(after, added), alpha=scale)
        added = self.mlp.forward(self.linears, self._norm(before_mlp, hidden))
        return torch.add(hidden, self._norm(after_mlp, added), alpha=scale)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.norms[name](x) if name else x

    @contextmanager
    def observed(self, observe: Observe) -> Iterator[None]:
        """Within, `observe(name, x)` is told the input of each matrix, such as "self_attn.q_proj".

        Those that see the same input are told the same tensor, one after the other.
        """
        self.linears.observe = observe
        try:
            yield
        finally:
            self.linears.observe = None


class Output:
    """The last norm, the output matrix and what families do to the logits."""

    def __init__(self, config: ModelConfig, norm: torch.Tensor, head: torch.Tensor) -> None:
        """
        Args:
            config: of the model.
            norm: [D].
            head: [V, D], in any floating type.
        """
        self.config = config
        self.norm = RMSNorm(norm, config.norm_eps, adds_one=config.layout.norm_adds_one)
        self.head = head
        self._piece: torch.Tensor | None = None
        """Of the matrix in float32, always in the same place: pieces that come and go leave holes."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Of float32 [..., D]: float32 [..., V], in `out` if it is given. The matrix is made float32 in
        pieces."""
        x = self.norm(hidden)
        n_vocab, width = self.head.shape
        logits = torch.empty((*x.shape[:-1], n_vocab), device=x.device) if out is None else out
        if self._piece is None:
            self._piece = torch.empty((min(VOCABULARY_CHUNK, n_vocab), width), device=x.device)
        for start in range(0, n_vocab, VOCABULARY_CHUNK):
            stop = min(start + VOCABULARY_CHUNK, n_vocab)
            rows = self._piece[: stop - start].copy_(self.head[start:stop])
            logits[..., start:stop] = torch.nn.functional.linear(x, rows)
        if self.config.logits_divisor != 1:
            logits /= self.config.logits_divisor
        if self.config.final_soft_cap is not None:
            logits = logits.div_(self.config.final_soft_cap).tanh_().mul_(self.config.final_soft_cap)
        return logits


class Decoder:
    """A whole model from a file, of which one layer at a time is in memory."""

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        """
        Args:
            weights: of the model.
            device: where it is computed: "cpu", "cuda", "mps".
        """
        self.weights = weights
        self.config = weights.config
        self.device = device

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """What goes into the first layer: int64 [B, S] to float32 [B, S, D]."""
        return self.weights.embed(tokens).to(self.device) * self.config.embedding_scale

    def layer(self, index: int) -> DecoderLayer:
        """A layer, read now."""
        return DecoderLayer(self.config, index, self.weights.layer(index, self.device))

    def layers(self) -> Iterator[DecoderLayer]:
        """All layers in order. Keep none of them while the next is read."""
        for index in range(self.config.n_layers):
            yield self.layer(index)

    def output(self) -> Output:
        """What makes logits of what the last layer left, read now."""
        return Output(self.config, self.weights.final_norm(self.device), self.weights.head())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each position: int64 [B, S] to float32 [B, S, V]."""
        hidden = self.embed(tokens)
        positions = torch.arange(tokens.shape[1], device=self.device)
        for layer in self.layers():
            hidden = layer.forward(hidden, positions)
            del layer
        return self.output().logits(hidden)
