"""Gemma 3, the text decoder."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import ModelConfig, RopeKind
from models.errors import UnsupportedModel
from models.families.base import Change, Family, Metadata, TensorRule, attention_and_mlp

PATTERN = 6
"""llama.cpp assumes that every sixth layer sees all where the file doesn't say."""


class Gemma3(Family):
    """Norms before and after attention and MLP, norms on queries and keys, local and global layers."""

    name = "Gemma 3"
    architectures = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    gguf = "gemma3"
    activation = "gelu_pytorch_tanh"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "_sliding_window_pattern": PATTERN,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.attention_bias:
            raise UnsupportedModel("a Gemma 3 model with attention biases is not supported")
        if config.rope.scaling is not None and config.rope.scaling.kind is RopeKind.LLAMA3:
            raise UnsupportedModel("a Gemma 3 model with llama3 rope scaling is not supported")
        if config.local_rope is not None and config.local_rope.scaling is not None:
            raise UnsupportedModel(
                "a Gemma 3 model with scaled positions in its local layers is not supported"
            )

    def norm(self) -> Change:
        """Stored less one."""
        return Change.ADD_ONE

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        source, target = f"model.layers.{index}", f"blk.{index}"
        hidden, head = (config.hidden_size,), (config.head_dim,)
        for theirs, ours, shape, factor in (
            ("input_layernorm", "attn_norm", hidden, 1.0),
            ("self_attn.q_norm", "attn_q_norm", head, self._query_factor(config)),
            ("self_attn.k_norm", "attn_k_norm", head, 1.0),
            ("post_attention_layernorm", "post_attention_norm", hidden, 1.0),
            ("pre_feedforward_layernorm", "ffn_norm", hidden, 1.0),
            ("post_feedforward_layernorm", "post_ffw_norm", hidden, 1.0),
        ):
            yield TensorRule(
                f"{source}.{theirs}.weight", f"{target}.{ours}.weight", shape, Change.ADD_ONE, factor=factor
            )
        yield from attention_and_mlp(config, index)

    def _query_factor(self, config: ModelConfig) -> float:
        """Puts a `query_pre_attn_scalar` that llama.cpp doesn't know of into the queries' norm.

        llama.cpp divides by the root of head_dim, and of hidden_size/heads in the model of 62 layers.
        """
        if config.attention_scale is None:
            return 1.0
        assumed = config.hidden_size // config.n_heads if config.n_layers == 62 else config.head_dim
        return math.sqrt(assumed / config.attention_scale)

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        numbers = super().metadata(config)
        numbers |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        if config.final_soft_cap is not None:
            numbers["final_logit_softcapping"] = config.final_soft_cap
        if config.sliding_window is None or not any(config.sliding_layers):
            return numbers
        numbers["attention.sliding_window"] = config.sliding_window
        local = config.local_rope or config.rope
        numbers["rope.freq_base_swa"] = local.theta
        expected = tuple((layer + 1) % PATTERN != 0 for layer in range(config.n_layers))
        if config.sliding_layers != expected:
            numbers["attention.sliding_window_pattern"] = list(config.sliding_layers)
        return numbers
