"""Phi-3 and Phi-4 of the same layout."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import Layout, ModelConfig, RopeKind
from models.errors import UnsupportedModel
from models.families.base import PRE_NORMS, Family, TensorRule, vectors


class Phi3(Family):
    """Llama's layout with fused matrices; longrope, and positions on a part of each head in Phi-4-mini."""

    name = "Phi-3"
    architectures = ("Phi3ForCausalLM",)
    gguf = "phi3"
    layout = Layout(
        fused=True,
        ignored=frozenset(
            {"attention_bias", "mlp_bias", "layer_types", "max_window_layers", "use_sliding_window"}
        ),
    )
    partial_rotary = True
    ropes = frozenset({RopeKind.LONGROPE})
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.q_size != config.hidden_size:
            raise UnsupportedModel(
                f"a Phi-3 model whose heads ({config.n_heads} of {config.head_dim}) don't add up to "
                f"hidden_size {config.hidden_size}: llama.cpp can't load it"
            )

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        hidden, inner = config.hidden_size, config.intermediate_size
        yield from vectors(config, index, PRE_NORMS)
        for theirs, ours, shape in (
            ("self_attn.qkv_proj", "attn_qkv", (config.q_size + 2 * config.kv_size, hidden)),
            ("self_attn.o_proj", "attn_output", (hidden, config.q_size)),
            ("mlp.gate_up_proj", "ffn_up", (2 * inner, hidden)),
            ("mlp.down_proj", "ffn_down", (hidden, inner)),
        ):
            yield TensorRule(f"model.layers.{index}.{theirs}.weight", f"blk.{index}.{ours}.weight", shape)
