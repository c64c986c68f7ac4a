"""Llama 2 and 3, and all that share their layout: SmolLM2, TinyLlama, many fine-tunes; and Mistral."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import Layout, ModelConfig, RopeKind
from models.families.base import PRE_NORMS, Change, Family, TensorRule, attention_and_mlp, vectors


class Llama(Family):
    """Pre-norm decoder with rotary positions, grouped queries and a gated MLP."""

    name = "Llama"
    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM",)
    gguf = "llama"
    layout = Layout(ignored=frozenset({"sliding_window"}))
    ropes = frozenset(RopeKind)
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        yield from vectors(config, index, PRE_NORMS)
        yield from attention_and_mlp(config, index, rotary=Change.INTERLEAVE)


class Mistral(Llama):
    """Llama's layout; the first release saw only so far back."""

    name = "Mistral"
    architectures = ("MistralForCausalLM", "MinistralForCausalLM")
    layout = Layout(
        ignored=frozenset({"attention_bias", "mlp_bias", "max_window_layers", "use_sliding_window"})
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": 4096,
    }
