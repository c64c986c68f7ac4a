"""The gated MLP: down(act(gate(x)) * up(x)) (Shazeer 2020)."""

from collections.abc import Callable
from functools import partial

import torch

from models.errors import UnsupportedModel
from models.linear import Linears

Activation = Callable[[torch.Tensor], torch.Tensor]


def activation(name: str) -> Activation:
    """The function that transformers calls so.

    Raises:
        UnsupportedModel: none that is known here.
    """
    functional = torch.nn.functional
    known: dict[str, Activation] = {
        "silu": functional.silu,
        "swish": functional.silu,
        "gelu": functional.gelu,
        "gelu_new": partial(functional.gelu, approximate="tanh"),
        "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
        "relu": functional.relu,
    }
    if name not in known:
        raise UnsupportedModel(f"activation {name!r} is not supported: {', '.join(known)} are")
    return known[name]


class GatedMLP:
    """One MLP; `prefix` is where its matrices are among the layer's: "mlp", or "mlp.experts.3"."""

    def __init__(self, act: Activation, prefix: str, *, fused: bool = False) -> None:
        self.act = act
        self.prefix = prefix
        self.fused = fused

    def groups(self) -> list[list[str]]:
        """Its matrices; those of a group see the same input."""
        first = ["gate_up_proj"] if self.fused else ["gate_proj", "up_proj"]
        return [[f"{self.prefix}.{name}" for name in group] for group in (first, ["down_proj"])]

    def names(self) -> list[str]:
        """Its matrices, in the order in which they multiply."""
        return [name for group in self.groups() for name in group]

    def forward(self, linears: Linears, x: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        first, [last] = self.groups()
        if self.fused:
            gate, up = linears.apply(first[0], x).chunk(2, dim=-1)
        else:
            gate, up = (linears.apply(name, x) for name in first)
        return linears.apply(last, self.act(gate).mul_(up))
