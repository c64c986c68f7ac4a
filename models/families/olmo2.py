"""OLMo 2."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import Layout, ModelConfig, Norms, QueryNorm
from models.errors import UnsupportedModel
from models.families.base import Family, TensorRule, attention_and_mlp, vectors


class Olmo2(Family):
    """Norms after attention and MLP instead of before, and on all queries and all keys of a layer."""

    name = "OLMo 2"
    architectures = ("Olmo2ForCausalLM",)
    gguf = "olmo2"
    layout = Layout(
        norms=Norms.AFTER,
        query_norm=QueryNorm.WHOLE,
        ignored=frozenset({"sliding_window", "mlp_bias"}),
    )
    needs_head = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.attention_bias:
            raise UnsupportedModel("an OLMo 2 model with attention biases: llama.cpp can't load it")
        if config.q_size != config.hidden_size:
            raise UnsupportedModel(
                f"an OLMo 2 model whose heads ({config.n_heads} of {config.head_dim}) don't add up to "
                f"hidden_size {config.hidden_size}: llama.cpp can't load it"
            )

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        for letter, size in (("q", config.q_size), ("k", config.kv_size)):
            yield TensorRule(
                f"model.layers.{index}.self_attn.{letter}_norm.weight",
                f"blk.{index}.attn_{letter}_norm.weight",
                (size,),
            )
        yield from attention_and_mlp(config, index)
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
        yield from vectors(config, index, norms)
