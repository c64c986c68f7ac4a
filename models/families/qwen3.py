"""Qwen3, dense and with experts."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from models.config import Layout, ModelConfig, QueryNorm
from models.errors import UnsupportedModel
from models.families.base import (
    PRE_NORMS,
    Family,
    Metadata,
    TensorRule,
    attention,
    mlp,
    vectors,
)


class Qwen3(Family):
    """Llama's layout with norms on each head's queries and keys."""

    name = "Qwen3"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen3ForCausalLM",)
    gguf = "qwen3"
    layout = Layout(query_norm=QueryNorm.HEAD, ignored=frozenset({"mlp_bias"}))
    defaults: ClassVar[Mapping[str, Any]] = {
        "head_dim": 128,
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
        if config.attention_bias:
            raise UnsupportedModel(f"a {self.name} model with attention biases: llama.cpp can't load it")

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        source, target = f"model.layers.{index}", f"blk.{index}"
        yield from vectors(config, index, PRE_NORMS)
        for letter in ("q", "k"):
            yield TensorRule(
                f"{source}.self_attn.{letter}_norm.weight",
                f"{target}.attn_{letter}_norm.weight",
                (config.head_dim,),
            )
        yield from attention(config, index)
        yield from self.feed_forward(config, index)

    def feed_forward(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """What stands after attention."""
        yield from mlp(config, index)

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        widths: Metadata = {
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
        }
        return super().metadata(config) | widths


class Qwen3Moe(Qwen3):
    """Qwen3 with a mixture of experts in place of the MLP."""

    name = "Qwen3-MoE"
    architectures = ("Qwen3MoeForCausalLM",)
    gguf = "qwen3moe"
    layout = Layout(
        query_norm=QueryNorm.HEAD,
        ignored=frozenset({"mlp_bias", "layer_types", "max_window_layers"}),
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    }

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.experts is None or not all(config.expert_layers):
            raise UnsupportedModel("a Qwen3-MoE model with layers without experts: llama.cpp can't load it")
        if not config.experts.normalized:
            raise UnsupportedModel(
                "a Qwen3-MoE model without norm_topk_prob: llama.cpp makes the experts' weights add up to one"
            )

    def feed_forward(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The router, and the experts: a matrix of each in the checkpoint, stacked in the GGUF file."""
        experts = config.experts
        if experts is None or not config.expert_layers[index]:
            yield from mlp(config, index)
            return
        source, target = f"model.layers.{index}.mlp", f"blk.{index}"
        hidden, inner = config.hidden_size, experts.size
        router = (experts.count, hidden)
        yield TensorRule(f"{source}.gate.weight", f"{target}.ffn_gate_inp.weight", router, exact=True)
        for kind, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            parts = tuple(f"{source}.experts.{i}.{kind}_proj.weight" for i in range(experts.count))
            yield TensorRule(
                parts[0], f"{target}.ffn_{kind}_exps.weight", (experts.count, *shape), parts=parts
            )

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        numbers = super().metadata(config)
        if config.experts is not None:
            numbers |= {
                "expert_count": config.experts.count,
                "expert_used_count": config.experts.used,
                "expert_feed_forward_length": config.experts.size,
            }
        return numbers
