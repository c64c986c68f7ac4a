"""Which matrices of W8A8 keep their inputs in 16 bits.

What rounding inputs costs is spread unevenly. Scales that are folded into norms bring queries, keys, values,
gates and ups close to nothing; the matrices whose outputs are added to what goes by are what is left, and the
MLP's above all: its inputs are products of two numbers, each token's largest elsewhere, so that no scales
that are the same for all tokens help. What counts is how much an error changes what goes by, relative to its
size, since the next norm divides by that. Such changes of different layers add up, and the divergence from
the source is in proportion to the sum: 1.2 to 1.7 nats for each 1 in most of SmolLM2's layers.

So what may be changed in all is divided among the layers, and a matrix that would take more than one layer's
part keeps its inputs. Only single matrices are asked: readers multiply queries, keys and values in one go,
gates and ups too, and take one scheme for them.
"""

from collections.abc import Mapping

import torch

from models.config import ModelConfig
from models.decoder import NORM_NAMES
from models.norm import RMSNorm
from quantize.methods.int8 import round_tokens

ALLOWED = 0.0005
"""Of the mean square of what goes by, for all layers together."""

ADDING = {"self_attn.o_proj": 1, "mlp.down_proj": 3}
"""Matrices whose outputs are added to what goes by, and which of NORM_NAMES comes between. Those of experts
are not among them: all experts of a layer have one scheme."""

PACKED = 4
"""Inputs that W8A16 packs into a word."""


class GoesBy:
    """What goes by in one layer, for a sample of tokens, from matrix to matrix."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, torch.Tensor], states: torch.Tensor
    ) -> None:
        """
        Args:
            config: of the model.
            weights: the layer's, as they are in the source.
            states: what goes into the layer, float32 [T, D].
        """
        self._config = config
        self._weights = weights
        self._states = states

    def keeps(self, name: str, tokens: torch.Tensor, scales: torch.Tensor | None) -> bool:
        """Whether a matrix shall keep its inputs. Ask in the order in which they multiply.

        Args:
            name: one of `ADDING`.
            tokens: its inputs, [T, K], of the same tokens as the states.
            scales: what they will be divided by, [K], and the matrix' columns multiplied with.
        """
        change = self._change(name, tokens, scales)
        return tokens.shape[1] % PACKED == 0 and change > ALLOWED / self._config.n_layers

    def _change(self, name: str, tokens: torch.Tensor, scales: torch.Tensor | None) -> float:
        """The mean over tokens of what rounding the inputs changes, over the size of what goes by."""
        rounded = round_tokens(tokens) if scales is None else round_tokens(tokens / scales) * scales
        added, otherwise = self._added(name, tokens), self._added(name, rounded)
        self._states = self._states + added
        sizes = self._states.square().sum(-1) + self._config.norm_eps
        return float(((otherwise - added).square().sum(-1) / sizes).mean())

    def _added(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """[T, K] to [T, D]."""
        layout = self._config.layout
        y = torch.nn.functional.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))
        norm = NORM_NAMES[layout.norms][ADDING[name]]
        if norm:
            weight = self._weights[f"{norm}.weight"]
            y = RMSNorm(weight, self._config.norm_eps, adds_one=layout.norm_adds_one)(y)
        return y * self._config.residual_multiplier
