"""A decoder layer in parts: what each group of matrices is given needs those before it, and not its own.

So a layer can be quantized while it is run, once: a group's inputs are known before its weights are needed,
and what it then makes of them is computed with the weights that came of it.
"""

from collections.abc import Callable
from functools import partial

import torch

from models.config import Norms
from models.decoder import NORM_NAMES, DecoderLayer
from models.linear import Linear, Linears
from models.mlp import GatedMLP
from quantize.residual_costs import residual_costs

Costs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of hidden states [B, S, D] and a matrix's inputs [B, S, K]: what a square error costs, [B, S]."""


class _Reached(Exception):
    """The input that was waited for is there."""


class Stages:
    """The parts of one layer. Hidden states are float32 [B, S, D]; nothing that is given is changed."""

    def __init__(self, layer: DecoderLayer, positions: torch.Tensor) -> None:
        """
        Args:
            layer: its matrices may be swapped between calls, in `layer.linears`.
            positions: int64 [S].
        """
        self.layer = layer
        self.positions = positions
        before, self.after, before_mlp, self.after_mlp = NORM_NAMES[layer.config.layout.norms]
        self.before, self.before_mlp = before, before_mlp
        self.attention_groups = layer.attention.groups()
        self.mlp_groups = layer.mlp.groups()

    @property
    def has_experts(self) -> bool:
        """The MLP is a mixture of experts: it has no one input of its last matrix."""
        return not isinstance(self.layer.mlp, GatedMLP)

    def attention_input(self, hidden: torch.Tensor) -> torch.Tensor:
        """What queries, keys and values are made of, [B, S, D]."""
        return self._norm(self.before, hidden)

    def mixed(self, hidden: torch.Tensor) -> torch.Tensor:
        """What attention mixed, which its last matrix is given: [B, S, heads * head_dim]."""
        layer = self.layer

        def run(linears: Linears) -> None:
            layer.attention.forward(linears, self.attention_input(hidden), self.positions)

        return self._input_of(self.attention_groups[-1][0], run)

    def after_attention(self, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """The hidden states with what attention adds to them."""
        return self._added(hidden, self.attention_groups[-1][0], mixed, self.after)

    def mlp_input(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the MLP is given, of the states after attention: [B, S, D]."""
        return self._norm(self.before_mlp, hidden)

    def gated(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the MLP's last matrix is given, of the states after attention: [B, S, inner]."""
        layer = self.layer

        def run(linears: Linears) -> None:
            layer.mlp.forward(linears, self.mlp_input(hidden))

        return self._input_of(self.mlp_groups[-1][0], run)

    def after_gated(self, hidden: torch.Tensor, gated: torch.Tensor) -> torch.Tensor:
        """The layer's output, of the states after attention and of `gated`."""
        return self._added(hidden, self.mlp_groups[-1][0], gated, self.after_mlp)

    def after_experts(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's output, of the states after attention; the layer's observer is told of all inputs."""
        added = self.layer.mlp.forward(self.layer.linears, self.mlp_input(hidden))
        return self._sum(hidden, self._norm(self.after_mlp, added))

    def costs(self, matrix: str) -> Costs | None:
        """What errors cost in a matrix whose outputs are added to what goes by, given the states before.
        None: where a norm comes first, all cost the same."""
        linear = self.layer.linears[matrix]
        config = self.layer.config
        if config.layout.norms is not Norms.BEFORE or not isinstance(linear, Linear):
            return None
        return partial(
            residual_costs, weight=linear.weight, multiplier=config.residual_multiplier, eps=config.norm_eps
        )

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.layer.norms[name](x) if name else x

    def _added(self, hidden: torch.Tensor, matrix: str, x: torch.Tensor, norm: str) -> torch.Tensor:
        return self._sum(hidden, self._norm(norm, self.layer.linears.apply(matrix, x)))

    def _sum(self, hidden: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        return torch.add(hidden, added, alpha=self.layer.config.residual_multiplier)

    def _input_of(self, matrix: str, run: Callable[[Linears], None]) -> torch.Tensor:
        """What a matrix is given while `run` runs, which goes no further."""
        found: list[torch.Tensor] = []

        def observe(name: str, x: torch.Tensor) -> None:
            if name == matrix:
                found.append(x)
                raise _Reached

        with self.layer.observed(observe):
            try:
                run(self.layer.linears)
            except _Reached:
                return found[0]
        raise RuntimeError(f"nothing is given to {matrix}")
