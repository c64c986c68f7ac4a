"""The matrices of a decoder's layers: their names and shapes, without reading them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.weights import Weights


def layer_matrices(weights: "Weights", index: int) -> dict[str, tuple[int, int]]:
    """What is quantized of a layer: {"self_attn.q_proj": (rows, columns), ...}. An expert's router is not."""
    prefix = f"model.layers.{index}."
    found = {}
    for rule in weights.family.layer(weights.config, index):
        shape = rule.shape[1:] if rule.parts else rule.shape
        if len(shape) != 2 or rule.exact:
            continue
        for name in rule.sources:
            found[name.removeprefix(prefix).removesuffix(".weight")] = (shape[0], shape[1])
    return found
