"""The matrices of a decoder's layers: their names and shapes, without reading them."""

from typing import Protocol

from models.config import ModelConfig
from models.families import Family


class Model(Protocol):
    """A model whose family is known."""

    @property
    def family(self) -> Family:
        """Of what layout it is."""
        ...

    @property
    def config(self) -> ModelConfig:
        """Its sizes."""
        ...


def layer_matrices(model: Model, index: int) -> dict[str, tuple[int, int]]:
    """What is quantized of a layer: {"self_attn.q_proj": (rows, columns), ...}. An expert's router is not."""
    prefix = f"model.layers.{index}."
    found = {}
    for rule in model.family.layer(model.config, index):
        shape = rule.source_shape
        if len(shape) != 2 or rule.exact:
            continue
        for name in rule.sources:
            found[name.removeprefix(prefix).removesuffix(".weight")] = (shape[0], shape[1])
    return found


def layers_of(model: Model) -> list[dict[str, tuple[int, int]]]:
    """What is quantized of each layer."""
    return [layer_matrices(model, index) for index in range(model.config.n_layers)]


def largest_of(layers: list[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """The layer of the most weights."""
    return max(layers, key=lambda layer: sum(n * k for n, k in layer.values()))
