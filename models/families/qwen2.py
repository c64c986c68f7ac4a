"""Qwen2 and Qwen2.5, dense."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import Layout, ModelConfig
from models.errors import UnsupportedModel
from models.families.base import PRE_NORMS, Family, TensorRule, attention_and_mlp, vectors


class Qwen2(Family):
    """Llama's layout with biases on queries, keys and values."""

    name = "Qwen2"
    architectures = ("Qwen2ForCausalLM",)
    gguf = "qwen2"
    layout = Layout(qkv_bias=True, ignored=frozenset({"attention_bias", "mlp_bias"}))
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.q_size != config.hidden_size:
            raise UnsupportedModel(
                f"a Qwen2 model whose heads ({config.n_heads} of {config.head_dim}) don't add up to "
                f"hidden_size {config.hidden_size}: llama.cpp can't load it"
            )

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        yield from vectors(config, index, PRE_NORMS)
        yield from attention_and_mlp(config, index)
