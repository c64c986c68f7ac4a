"""SmolLM3."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import ModelConfig
from models.errors import UnsupportedModel
from models.families.base import PRE_NORMS, Change, Family, TensorRule, attention_and_mlp, vectors

INTERVAL = 4
"""llama.cpp leaves every fourth layer without positions."""


class SmolLM3(Family):
    """Llama's layout; every fourth layer is without rotary positions."""

    name = "SmolLM3"
    architectures = ("SmolLM3ForCausalLM",)
    gguf = "smollm3"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_theta": 2_000_000.0,
        "no_rope_layer_interval": INTERVAL,
        "use_sliding_window": False,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.attention_bias or config.mlp_bias:
            raise UnsupportedModel("a SmolLM3 model with biases: llama.cpp can't load it")
        expected = tuple((layer + 1) % INTERVAL != 0 for layer in range(config.n_layers))
        if config.rotary_layers != expected:
            raise UnsupportedModel(
                f"a SmolLM3 model where not every {INTERVAL}th layer is without positions: "
                "llama.cpp computes that pattern only"
            )

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        yield from vectors(config, index, PRE_NORMS)
        yield from attention_and_mlp(config, index, rotary=Change.INTERLEAVE)
