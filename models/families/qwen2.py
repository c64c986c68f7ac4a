"""Qwen2 and Qwen2.5, dense."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import ModelConfig
from models.errors import UnsupportedModel
from models.families.base import Family, TensorRule, attention_and_mlp


class Qwen2(Family):
    """Llama's layout with biases on queries, keys and values."""

    name = "Qwen2"
    architectures = ("Qwen2ForCausalLM",)
    gguf = "qwen2"
    activation = "silu"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.q_size != config.hidden_size:
            raise UnsupportedModel(
                f"a Qwen2 model whose heads ({config.n_heads} of {config.head_dim}) don't add up to "
                f"hidden_size {config.hidden_size}: llama.cpp can't load it"
            )
        if any(config.sliding_layers) and (config.sliding_window or 0) < config.n_ctx:
            raise UnsupportedModel(
                "a Qwen2 model with a sliding window: llama.cpp would let it see everything"
            )

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        source, target = f"model.layers.{index}", f"blk.{index}"
        hidden = (config.hidden_size,)
        yield TensorRule(f"{source}.input_layernorm.weight", f"{target}.attn_norm.weight", hidden)
        yield from attention_and_mlp(config, index)
        yield TensorRule(f"{source}.post_attention_layernorm.weight", f"{target}.ffn_norm.weight", hidden)
        for letter, size in (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size)):
            yield TensorRule(
                f"{source}.self_attn.{letter}_proj.bias", f"{target}.attn_{letter}.bias", (size,)
            )
