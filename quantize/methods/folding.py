"""Scales of a matrix's inputs, folded into whatever makes those inputs: AWQ and SmoothQuant."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch

from models.config import ModelConfig, Norms
from models.decoder import NORM_NAMES


@dataclass(frozen=True, slots=True)
class FoldGroup:
    """Matrices with the same inputs, and what makes those inputs. Names are a layer's own."""

    source: str
    """A norm, such as "input_layernorm", or a matrix, such as "mlp.up_proj"."""
    targets: tuple[str, ...]
    """The matrices, which are quantized."""
    followers: tuple[str, ...] = ()
    """Others with the same inputs, which are not (a router): they are only multiplied."""
    source_rows: tuple[int, int] | None = None
    """Which of a matrix's outputs are those inputs; None: all."""
    source_adds_one: bool = False
    """A norm whose weight is stored less one."""


def fold_groups(config: ModelConfig, index: int) -> list[FoldGroup]:
    """The groups of a layer, in the order of its computation.

    Where a matrix's inputs are not made by a norm or a matrix alone (no norm before attention; values that
    are shared between heads), there is none for it.
    """
    names = NORM_NAMES[config.layout.norms]
    before, before_mlp = names[0], names[2]
    one = config.layout.norm_adds_one
    groups: list[FoldGroup] = []
    attention = (
        ("self_attn.qkv_proj",)
        if config.layout.fused
        else ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    )
    if config.layout.norms is not Norms.AFTER:
        groups.append(FoldGroup(before, attention, source_adds_one=one))
    if config.n_heads == config.n_kv_heads:
        fused_rows = (config.q_size + config.kv_size, config.q_size + 2 * config.kv_size)
        rows = fused_rows if config.layout.fused else None
        groups.append(FoldGroup(attention[-1], ("self_attn.o_proj",), source_rows=rows))
    prefixes = ["mlp"]
    followers: tuple[str, ...] = ()
    if config.experts is not None and config.expert_layers[index]:
        prefixes = [f"mlp.experts.{expert}" for expert in range(config.experts.count)]
        followers = ("mlp.gate",)
    gates = ("gate_up_proj",) if config.layout.fused else ("gate_proj", "up_proj")
    if config.layout.norms is not Norms.AFTER:
        targets = tuple(f"{prefix}.{gate}" for prefix in prefixes for gate in gates)
        groups.append(FoldGroup(before_mlp, targets, followers, source_adds_one=one))
    inner = config.intermediate_size
    for prefix in prefixes:
        rows = (inner, 2 * inner) if config.layout.fused else None
        groups.append(FoldGroup(f"{prefix}.{gates[-1]}", (f"{prefix}.down_proj",), source_rows=rows))
    return groups


def fold(weights: MutableMapping[str, torch.Tensor], group: FoldGroup, scales: torch.Tensor) -> None:
    """Divide the inputs by the scales where they are made, and multiply them into what reads them.

    Args:
        weights: a layer's tensors, "....weight" and "....bias": new ones are put in place of the old.
        group: which of them.
        scales: float [K], over 0.
    """
    source = f"{group.source}.weight"
    weights[source] = _divided(weights[source], scales, group)
    bias = f"{group.source}.bias"
    if bias in weights:
        weights[bias] = _divided(weights[bias], scales, group)
    for name in (*group.targets, *group.followers):
        weight = weights[f"{name}.weight"]
        weights[f"{name}.weight"] = (weight.float() * scales).to(weight.dtype)


def _divided(tensor: torch.Tensor, scales: torch.Tensor, group: FoldGroup) -> torch.Tensor:
    """A norm's weight, or the rows of a matrix (or of its bias) that make the inputs."""
    values = tensor.float()
    offset = 1.0 if group.source_adds_one else 0.0
    start, stop = group.source_rows or (0, len(values))
    part = (values[start:stop] + offset) / (scales if values.ndim == 1 else scales[:, None]) - offset
    return torch.cat([values[:start], part, values[stop:]]).to(tensor.dtype)


def can_fold(weights: Mapping[str, torch.Tensor], group: FoldGroup) -> bool:
    """Whether the layer has all these tensors, and their sizes fit."""
    source = weights.get(f"{group.source}.weight")
    if source is None:
        return False
    start, stop = group.source_rows or (0, len(source))
    readers = [weights.get(f"{name}.weight") for name in (*group.targets, *group.followers)]
    return all(reader is not None and reader.shape[1] == stop - start for reader in readers)
