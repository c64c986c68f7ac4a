"""Llama 2 and 3, and all that share their layout: SmolLM2, TinyLlama, many fine-tunes."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import ModelConfig
from models.families.base import Change, Family, TensorRule, attention_and_mlp


class Llama(Family):
    """Pre-norm decoder with rotary positions, grouped queries and a gated MLP."""

    name = "Llama"
    architectures = ("LlamaForCausalLM",)
    gguf = "llama"
    activation = "silu"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        source, target = f"model.layers.{index}", f"blk.{index}"
        hidden = (config.hidden_size,)
        yield TensorRule(f"{source}.input_layernorm.weight", f"{target}.attn_norm.weight", hidden)
        yield from attention_and_mlp(config, index, rotary=Change.INTERLEAVE)
        yield TensorRule(f"{source}.post_attention_layernorm.weight", f"{target}.ffn_norm.weight", hidden)
        for theirs, ours, size, heads in self._biases(config):
            change = Change.INTERLEAVE if heads else Change.NONE
            yield TensorRule(f"{source}.{theirs}.bias", f"{target}.{ours}.bias", (size,), change, heads)

    def _biases(self, config: ModelConfig) -> Iterator[tuple[str, str, int, int]]:
        if config.attention_bias:
            yield "self_attn.q_proj", "attn_q", config.q_size, config.n_heads
            yield "self_attn.k_proj", "attn_k", config.kv_size, config.n_kv_heads
            yield "self_attn.v_proj", "attn_v", config.kv_size, 0
            yield "self_attn.o_proj", "attn_output", config.hidden_size, 0
        if config.mlp_bias:
            yield "mlp.gate_proj", "ffn_gate", config.intermediate_size, 0
            yield "mlp.up_proj", "ffn_up", config.intermediate_size, 0
            yield "mlp.down_proj", "ffn_down", config.hidden_size, 0
