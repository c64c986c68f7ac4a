"""Granite, dense."""

from collections.abc import Mapping
from typing import Any, ClassVar

from models.config import ModelConfig
from models.families.base import Metadata
from models.families.llama import Llama


class Granite(Llama):
    """Llama's layout, with multipliers for embeddings, attention, residuals and logits."""

    name = "Granite"
    architectures = ("GraniteForCausalLM",)
    gguf = "granite"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_multiplier": 1.0,
    }

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        return super().metadata(config) | {
            "attention.scale": config.score_scale,
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_divisor,
        }
