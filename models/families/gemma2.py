"""Gemma 2."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from models.config import Layout, ModelConfig, Norms, RopeKind
from models.errors import UnsupportedModel
from models.families.base import Change, Family, Metadata, TensorRule, attention_and_mlp, vectors

PATTERN = 2
"""llama.cpp assumes that every second layer sees all where the file doesn't say."""

NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


class Gemma2(Family):
    """Norms before and after attention and MLP, soft caps, local and global layers in turn."""

    name = "Gemma 2"
    architectures = ("Gemma2ForCausalLM",)
    gguf = "gemma2"
    activation = "gelu_pytorch_tanh"
    layout = Layout(
        norms=Norms.AROUND, norm_adds_one=True, scaled_embedding=True, ignored=frozenset({"mlp_bias"})
    )
    ropes = frozenset({RopeKind.LINEAR})
    slides = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "_sliding_window_pattern": PATTERN,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.attention_bias:
            raise UnsupportedModel("a Gemma 2 model with attention biases is not supported")
        if config.attention_soft_cap is None or config.final_soft_cap is None:
            raise UnsupportedModel("a Gemma 2 model without soft caps: llama.cpp would cap")
        if config.sliding_window is None:
            raise UnsupportedModel("a Gemma 2 model without a sliding window: llama.cpp needs one")

    def norm(self) -> Change:
        """Stored less one."""
        return Change.ADD_ONE

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        yield from vectors(config, index, NORMS, Change.ADD_ONE)
        factor = query_factor(config, 46)
        for rule in attention_and_mlp(config, index):
            yield replace(rule, factor=factor) if ".attn_q." in rule.target else rule

    def tensors(self, config: ModelConfig, *, tied: bool) -> Iterator[TensorRule]:
        """All tensors, in the order in which they are written."""
        if not tied:
            raise UnsupportedModel("a Gemma 2 model with an output matrix: llama.cpp can't load it")
        yield from super().tensors(config, tied=tied)

    def from_gguf(self, raw: Mapping[str, Any], hyper: Callable[[str], object]) -> dict[str, Any]:
        """What config.json says beyond the common keys, of a GGUF file."""
        return {"query_pre_attn_scalar": assumed_scale(raw, 46)}

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        numbers = super().metadata(config)
        numbers |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        if config.attention_soft_cap is not None:
            numbers["attn_logit_softcapping"] = config.attention_soft_cap
        if config.final_soft_cap is not None:
            numbers["final_logit_softcapping"] = config.final_soft_cap
        return numbers | windows(config, PATTERN)


def query_factor(config: ModelConfig, large: int) -> float:
    """Puts a `query_pre_attn_scalar` that llama.cpp doesn't know of into the queries.

    llama.cpp divides by the root of head_dim, and of hidden_size/heads in the model of `large` layers.
    """
    if config.attention_scale is None:
        return 1.0
    assumed = config.hidden_size // config.n_heads if config.n_layers == large else config.head_dim
    return math.sqrt(assumed / config.attention_scale)


def assumed_scale(raw: Mapping[str, Any], large: int) -> int | None:
    """The `query_pre_attn_scalar` of a GGUF file."""
    width, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    large_model = raw.get("num_hidden_layers") == large and isinstance(width, int) and isinstance(heads, int)
    return width // heads if large_model and width and heads else raw.get("head_dim")


def windows(config: ModelConfig, pattern: int) -> Metadata:
    """The window, and which layers have it where llama.cpp would assume others."""
    if config.sliding_window is None:
        return {}
    numbers: Metadata = {"attention.sliding_window": config.sliding_window}
    expected = tuple((layer + 1) % pattern != 0 for layer in range(config.n_layers))
    if config.sliding_layers != expected:
        numbers["attention.sliding_window_pattern"] = list(config.sliding_layers)
    return numbers
