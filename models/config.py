"""Reads config.json: the numbers that make a decoder, checked, in one record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from models.config_reader import Reader
from models.errors import UnsupportedModel
from models.rope_config import Rope, RopeKind, RopeScaling, llama3_factors, read_ropes

__all__ = [
    "Experts",
    "Layout",
    "ModelConfig",
    "Norms",
    "QueryNorm",
    "Rope",
    "RopeKind",
    "RopeScaling",
    "llama3_factors",
    "parse",
]

MAX_LAYERS = 512
MAX_SIZE = 2**24

READ_BACK = frozenset({"gptq", "awq", "compressed-tensors", "fp8", "fbgemm_fp8"})
"""Quantizations whose weights models/packed.py reads."""

NULLABLE = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
"""Where null says "none", and not "as usual"."""


class Norms(StrEnum):
    """Where a layer's norms stand."""

    BEFORE = "before"
    """Before attention and before the MLP."""
    AROUND = "around"
    """Before and after each (Gemma 2 and 3)."""
    AFTER = "after"
    """After each (OLMo 2)."""


class QueryNorm(StrEnum):
    """Whether queries and keys are normed before they are rotated."""

    NONE = "none"
    HEAD = "head"
    """Each head by itself, all with one weight."""
    WHOLE = "whole"
    """All heads together."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the code of a family fixes and no config.json says."""

    norms: Norms = Norms.BEFORE
    norm_adds_one: bool = False
    """Norms' weights are stored less one."""
    query_norm: QueryNorm = QueryNorm.NONE
    qkv_bias: bool = False
    """Queries, keys and values have biases, though the output of attention has none (Qwen2)."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the root of hidden_size."""
    fused: bool = False
    """Queries, keys and values are one matrix, and so are gate and up."""
    ignored: frozenset[str] = frozenset()
    """Keys of config.json that it doesn't look at, though others do: some carry them along unused."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP."""

    count: int
    used: int
    """For each token."""
    size: int
    """Of the inner layer of each."""
    normalized: bool
    """The weights of those used add up to one."""


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
    layout: Layout
    rotary_layers: tuple[bool, ...]
    """For each layer whether it has rotary positions (SmolLM3 leaves some without)."""
    experts: Experts | None
    expert_layers: tuple[bool, ...]
    """For each layer whether it has experts in place of an MLP."""
    embedding_multiplier: float
    residual_multiplier: float
    """Of what attention and MLP add."""
    attention_multiplier: float | None
    """The logits of attention are multiplied by it (Granite) instead of divided by a root."""
    logits_divisor: float

    @property
    def q_size(self) -> int:
        """Rows of the query projection."""
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.n_kv_heads * self.head_dim

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.attention_bias or self.layout.qkv_bias

    @property
    def rotary_dim(self) -> int:
        """How many numbers of a head are rotated."""
        return self.rope.rotated(self.head_dim)

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        if self.attention_multiplier is not None:
            return self.attention_multiplier
        return 1 / math.sqrt(self.attention_scale or self.head_dim)

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by."""
        return self.embedding_multiplier * (
            math.sqrt(self.hidden_size) if self.layout.scaled_embedding else 1.0
        )

    @property
    def least_window(self) -> int:
        """Tokens that every layer sees at least, whatever the length of the text."""
        return min(self.sliding_window or self.n_ctx, self.n_ctx) if any(self.sliding_layers) else self.n_ctx


def parse(
    raw: Mapping[str, Any], defaults: Mapping[str, Any], where: Path, layout: Layout | None = None
) -> ModelConfig:
    """The config of a decoder.

    Args:
        raw: config.json; of a model with several parts, its `text_config` is taken.
        defaults: what the family's class in transformers assumes where config.json is silent.
        where: the file, for messages.
        layout: what the family's code fixes; None: Llama's.

    Raises:
        BrokenModelFile: a number is missing, of the wrong type or impossible.
        UnsupportedModel: a rope scaling or a quantization that is not supported.
    """
    top = raw
    if isinstance(raw.get("text_config"), dict):
        raw = {**raw["text_config"]}
    layout = layout or Layout()
    raw = {key: value for key, value in raw.items() if key not in layout.ignored}
    assumed = {key: value for key, value in defaults.items() if key not in NULLABLE or key not in raw}
    reader = Reader({**assumed, **{key: value for key, value in raw.items() if value is not None}}, where)
    if "quantization_config" in top or "quantization_config" in raw:
        _check_scheme(reader, top.get("quantization_config") or raw.get("quantization_config") or {})
    n_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    heads = _heads(reader)
    window = reader.integer("sliding_window", 2**31) if reader.raw.get("sliding_window") else None
    if reader.raw.get("use_sliding_window") is False:
        window = None
    rope, local_rope = read_ropes(reader, heads.dim)
    experts = _experts(reader)
    architectures = top.get("architectures")
    return ModelConfig(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        model_type=str(reader.raw.get("model_type", "")),
        vocab_size=reader.integer("vocab_size", MAX_SIZE),
        hidden_size=reader.integer("hidden_size", MAX_SIZE),
        intermediate_size=reader.integer("intermediate_size", MAX_SIZE),
        n_layers=n_layers,
        n_heads=heads.n_query,
        n_kv_heads=heads.n_key_value,
        head_dim=heads.dim,
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
        layout=layout,
        rotary_layers=_rotary_layers(reader, n_layers),
        experts=experts,
        expert_layers=_expert_layers(reader, n_layers, experts),
        embedding_multiplier=reader.number("embedding_multiplier", 0.0, 1e9, 1.0),
        residual_multiplier=reader.number("residual_multiplier", 0.0, 1e9, 1.0),
        attention_multiplier=reader.optional("attention_multiplier"),
        logits_divisor=reader.number("logits_scaling", 0.0, 1e9, 1.0),
    )


def _check_scheme(reader: Reader, scheme: object) -> None:
    """Refuse a quantization that is not read back."""
    if not isinstance(scheme, dict):
        raise reader.broken(f"quantization_config is {repr(scheme)[:80]}: an object belongs there")
    method = str(scheme.get("quant_method", "?"))[:80]
    if method not in READ_BACK:
        raise UnsupportedModel(
            f"{reader.where}: the checkpoint is quantized already ({method}): give the unquantized one"
        )


class _Heads(NamedTuple):
    """Of attention."""

    n_query: int
    n_key_value: int
    dim: int


def _heads(reader: Reader) -> _Heads:
    n_query = reader.integer("num_attention_heads", 2**16)
    hidden = reader.integer("hidden_size", MAX_SIZE)
    if "head_dim" not in reader.raw and hidden % n_query:
        raise reader.broken(f"hidden_size {hidden} is no multiple of num_attention_heads {n_query}")
    dim = reader.integer("head_dim", 2**16, hidden // n_query)
    n_key_value = reader.integer("num_key_value_heads", 2**16, n_query)
    if n_query % n_key_value:
        raise reader.broken(
            f"num_attention_heads {n_query} is no multiple of num_key_value_heads {n_key_value}"
        )
    if dim % 2:
        raise reader.broken(f"head_dim {dim} is odd: rotary positions need pairs")
    return _Heads(n_query, n_key_value, dim)


def _sliding_layers(reader: Reader, n_layers: int, window: int | None) -> tuple[bool, ...]:
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


def _rotary_layers(reader: Reader, n_layers: int) -> tuple[bool, ...]:
    """SmolLM3 lists which layers have them (as ones, against the key's name), or every n-th has none."""
    listed = reader.raw.get("no_rope_layers")
    if isinstance(listed, list):
        if len(listed) < n_layers:
            raise reader.broken(f"no_rope_layers has {len(listed)} entries for {n_layers} layers")
        return tuple(bool(entry) for entry in listed[:n_layers])
    if "no_rope_layer_interval" in reader.raw:
        interval = reader.integer("no_rope_layer_interval", 2**16)
        return tuple((layer + 1) % interval != 0 for layer in range(n_layers))
    return (True,) * n_layers


def _experts(reader: Reader) -> Experts | None:
    """transformers has called their number num_experts and num_local_experts."""
    key = "num_local_experts" if "num_local_experts" in reader.raw else "num_experts"
    if not reader.raw.get(key):
        return None
    count = reader.integer(key, 2**16)
    return Experts(
        count=count,
        used=reader.integer("num_experts_per_tok", count),
        size=reader.integer("moe_intermediate_size", MAX_SIZE),
        normalized=bool(reader.raw.get("norm_topk_prob", False)),
    )


def _expert_layers(reader: Reader, n_layers: int, experts: Experts | None) -> tuple[bool, ...]:
    if experts is None:
        return (False,) * n_layers
    step = reader.integer("decoder_sparse_step", 2**16, 1)
    plain = reader.raw.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise reader.broken(f"mlp_only_layers is {plain!r}: a list belongs there")
    return tuple(layer not in plain and (layer + 1) % step == 0 for layer in range(n_layers))
