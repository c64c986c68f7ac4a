"""Reads config.json: the numbers that make a decoder, checked, in one record.

transformers has written these numbers under several names over the years (`rope_theta` and `rope_scaling`
until version 4, `rope_parameters` since 5); both forms are read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from models.errors import BrokenModelFile, UnsupportedModel

MAX_LAYERS = 512
MAX_SIZE = 2**24


class RopeKind(StrEnum):
    """How the rotary frequencies were stretched to a longer context."""

    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The stretch, and the numbers that its kind needs."""

    kind: RopeKind
    factor: float
    original_context: int = 0
    """Tokens that the model was first trained on (llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Yarn's factor on the logits; None: 0.1 ln(factor) + 1."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: frequency i is theta^(-2i/head_dim)."""

    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape and its quirks."""

    architecture: str
    """The class in transformers, such as "LlamaForCausalLM"."""
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ctx: int
    """Tokens of context that the model was trained on."""
    norm_eps: float
    tied: bool
    """The output matrix is the embedding."""
    activation: str
    rope: Rope
    local_rope: Rope | None
    """Of the layers with a sliding window, where they have their own."""
    sliding_window: int | None
    sliding_layers: tuple[bool, ...]
    """For each layer whether it sees only the window."""
    attention_bias: bool
    mlp_bias: bool
    attention_scale: float | None
    """`query_pre_attn_scalar`: the logits are divided by its root instead of head_dim's."""
    attention_soft_cap: float | None
    final_soft_cap: float | None
    bidirectional: bool
    name: str
    """What the checkpoint calls itself, or ""."""

    @property
    def q_size(self) -> int:
        """Rows of the query projection."""
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.n_kv_heads * self.head_dim


def parse(raw: Mapping[str, Any], defaults: Mapping[str, Any], where: Path) -> ModelConfig:
    """The config of a decoder.

    Args:
        raw: config.json; of a model with several parts, its `text_config` is taken.
        defaults: what the family's class in transformers assumes where config.json is silent.
        where: the file, for messages.

    Raises:
        BrokenModelFile: a number is missing, of the wrong type or impossible.
        UnsupportedModel: a rope scaling or a quantization that is not supported.
    """
    top = raw
    if isinstance(raw.get("text_config"), dict):
        raw = {**raw["text_config"]}
    reader = _Reader({**defaults, **{key: value for key, value in raw.items() if value is not None}}, where)
    if "quantization_config" in top or "quantization_config" in raw:
        method = (top.get("quantization_config") or raw.get("quantization_config") or {}).get(
            "quant_method", "?"
        )
        raise UnsupportedModel(
            f"{where}: the checkpoint is quantized already ({method}): give the unquantized one"
        )
    n_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    n_heads = reader.integer("num_attention_heads", 2**16)
    hidden = reader.integer("hidden_size", MAX_SIZE)
    if "head_dim" not in reader.raw and hidden % n_heads:
        raise reader.broken(f"hidden_size {hidden} is no multiple of num_attention_heads {n_heads}")
    head_dim = reader.integer("head_dim", 2**16, hidden // n_heads)
    n_kv_heads = reader.integer("num_key_value_heads", 2**16, n_heads)
    if n_heads % n_kv_heads:
        raise reader.broken(
            f"num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv_heads}"
        )
    if head_dim % 2:
        raise reader.broken(f"head_dim {head_dim} is odd: rotary positions need pairs")
    window = reader.integer("sliding_window", 2**31) if reader.raw.get("sliding_window") else None
    if reader.raw.get("use_sliding_window") is False:
        window = None
    rope, local_rope = _ropes(reader)
    architectures = top.get("architectures")
    return ModelConfig(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        model_type=str(reader.raw.get("model_type", "")),
        vocab_size=reader.integer("vocab_size", MAX_SIZE),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size", MAX_SIZE),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_ctx=reader.integer("max_position_embeddings", 2**31 - 1),
        norm_eps=reader.number("rms_norm_eps", 0.0, 1.0),
        tied=bool(top.get("tie_word_embeddings", reader.raw.get("tie_word_embeddings", False))),
        activation=str(reader.raw.get("hidden_activation") or reader.raw.get("hidden_act") or ""),
        rope=rope,
        local_rope=local_rope,
        sliding_window=window,
        sliding_layers=_sliding_layers(reader, n_layers, window),
        attention_bias=bool(reader.raw.get("attention_bias", False)),
        mlp_bias=bool(reader.raw.get("mlp_bias", False)),
        attention_scale=reader.optional("query_pre_attn_scalar"),
        attention_soft_cap=reader.optional("attn_logit_softcapping"),
        final_soft_cap=reader.optional("final_logit_softcapping"),
        bidirectional=bool(reader.raw.get("use_bidirectional_attention", False)),
        name=str(top.get("_model_name_or_path") or top.get("_name_or_path") or ""),
    )


class _Reader:
    """Takes numbers out of a dictionary that strangers wrote."""

    def __init__(self, raw: Mapping[str, Any], where: Path) -> None:
        self.raw = raw
        self.where = where

    def broken(self, what: str) -> BrokenModelFile:
        return BrokenModelFile(f"{self.where}: {what}")

    def integer(self, key: str, limit: int, default: int | None = None) -> int:
        value = self.raw.get(key, default)
        if value is None:
            raise self.broken(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self.broken(f"{key} is {value!r}: a whole number from 1 to {limit} belongs there")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.raw.get(key, default)
        if value is None:
            raise self.broken(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
            raise self.broken(f"{key} is {value!r}: a number over {low:g} up to {high:g} belongs there")
        return float(value)

    def optional(self, key: str) -> float | None:
        return self.number(key, 0.0, 1e9) if self.raw.get(key) is not None else None


def _sliding_layers(reader: _Reader, n_layers: int, window: int | None) -> tuple[bool, ...]:
    """Which layers slide: listed one by one, or every layer but each n-th."""
    if window is None:
        return (False,) * n_layers
    kinds = reader.raw.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != n_layers:
            raise reader.broken(f"layer_types has {len(kinds)} entries for {n_layers} layers")
        known = {"full_attention": False, "sliding_attention": True}
        for kind in kinds:
            if kind not in known:
                raise UnsupportedModel(f"{reader.where}: layers of type {kind!r} are not supported")
        return tuple(known[kind] for kind in kinds)
    if "sliding_window_pattern" in reader.raw or "_sliding_window_pattern" in reader.raw:
        key = (
            "sliding_window_pattern" if "sliding_window_pattern" in reader.raw else "_sliding_window_pattern"
        )
        pattern = reader.integer(key, MAX_LAYERS)
        return tuple((layer + 1) % pattern != 0 for layer in range(n_layers))
    if "max_window_layers" in reader.raw:
        first = reader.raw["max_window_layers"]
        return tuple(isinstance(first, int) and layer >= first for layer in range(n_layers))
    return (True,) * n_layers


def _ropes(reader: _Reader) -> tuple[Rope, Rope | None]:
    """The rope of the layers that see all, and that of those with a window."""
    raw = reader.raw
    parameters = raw.get("rope_parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("full_attention"), dict):
        local = parameters.get("sliding_attention")
        return (
            _rope(reader, {"rope_theta": raw.get("rope_theta"), **parameters["full_attention"]}),
            _rope(reader, local) if isinstance(local, dict) else None,
        )
    scaling = parameters if isinstance(parameters, dict) else raw.get("rope_scaling")
    if scaling is not None and not isinstance(scaling, dict):
        raise reader.broken(f"rope_scaling is {scaling!r}: an object belongs there")
    both = {
        "rope_theta": raw.get("rope_theta"),
        "partial_rotary_factor": raw.get("partial_rotary_factor", 1.0),
        **(scaling or {}),
    }
    local_theta = raw.get("rope_local_base_freq")
    return _rope(reader, both), _rope(reader, {"rope_theta": local_theta}) if local_theta else None


def _rope(reader: _Reader, raw: Mapping[str, Any]) -> Rope:
    part = _Reader({key: value for key, value in raw.items() if value is not None}, reader.where)
    theta = part.number("rope_theta", 0.0, 1e15, 10_000.0)
    if part.raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{reader.where}: rotary positions on a part of each head are not supported")
    kind = part.raw.get("rope_type", part.raw.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind not in set(RopeKind):
        known = ", ".join(RopeKind)
        raise UnsupportedModel(f"{reader.where}: rope scaling {kind!r} is not supported: {known} are")
    context = part.raw.get(
        "original_max_position_embeddings", reader.raw.get("original_max_position_embeddings")
    )
    if context is None and kind != RopeKind.LINEAR:
        context = reader.integer("max_position_embeddings", 2**31 - 1)
    scaling = RopeScaling(
        kind=RopeKind(kind),
        factor=part.number("factor", 0.0, 1e6),
        original_context=int(context or 0),
        low_freq_factor=part.number("low_freq_factor", 0.0, 1e6, 1.0),
        high_freq_factor=part.number("high_freq_factor", 0.0, 1e6, 4.0),
        beta_fast=part.number("beta_fast", 0.0, 1e6, 32.0),
        beta_slow=part.number("beta_slow", 0.0, 1e6, 1.0),
        attention_factor=part.optional("attention_factor"),
    )
    if scaling.kind is RopeKind.LLAMA3 and scaling.low_freq_factor >= scaling.high_freq_factor:
        raise reader.broken("rope scaling's low_freq_factor must be below its high_freq_factor")
    if part.raw.get("mscale") is not None or part.raw.get("mscale_all_dim") is not None:
        raise UnsupportedModel(f"{reader.where}: yarn with mscale is not supported")
    return Rope(theta, scaling)


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """What each rotary frequency is divided by under "llama3" scaling: head_dim/2 numbers from 1 to `factor`.

    Wavelengths under original_context/high_freq_factor stay, those over original_context/low_freq_factor are
    stretched by `factor`, and between them the frequency is interpolated (as Meta published for Llama 3.1).
    """
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        if wavelength < scaling.original_context / scaling.high_freq_factor:
            factors.append(1.0)
        elif wavelength > scaling.original_context / scaling.low_freq_factor:
            factors.append(scaling.factor)
        else:
            smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return factors
