"""The matrices of a layer, by name: what a quantization looks at and puts its own in place of."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch

Observe = Callable[[str, torch.Tensor], None]
"""Is told a matrix's name and its input, [..., in], before it multiplies."""


class Projection(Protocol):
    """A matrix in any form, with its bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        ...


class Linear:
    """A dense matrix."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """
        Args:
            weight: [out, in].
            bias: [out].
        """
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Linears(dict[str, Projection]):
    """The matrices of one layer. Assign to a name to swap in another form of that matrix."""

    def __init__(self, weights: Mapping[str, torch.Tensor], names: Iterable[str]) -> None:
        """
        Args:
            weights: tensors such as "self_attn.q_proj.weight" and ".bias".
            names: those that are matrices, such as "self_attn.q_proj".
        """
        super().__init__(
            {name: Linear(weights[f"{name}.weight"], weights.get(f"{name}.bias")) for name in names}
        )
        self.observe: Observe | None = None

    def apply(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Multiply [..., in] by the matrix of that name; the observer is told."""
        if self.observe is not None:
            self.observe(name, x)
        return self[name](x)
