"""Gemma 3, the text decoder."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from models.config import Layout, ModelConfig, Norms, QueryNorm, RopeKind
from models.errors import UnsupportedModel
from models.families.base import Change, Family, Metadata, TensorRule, attention_and_mlp, vectors
from models.families.gemma2 import NORMS, assumed_scale, query_factor, windows

PATTERN = 6
"""llama.cpp assumes that every sixth layer sees all where the file doesn't say."""


class Gemma3(Family):
    """Norms before and after attention and MLP, norms on queries and keys, local and global layers."""

    name = "Gemma 3"
    architectures = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    gguf = "gemma3"
    activation = "gelu_pytorch_tanh"
    layout = Layout(
        norms=Norms.AROUND,
        norm_adds_one=True,
        query_norm=QueryNorm.HEAD,
        scaled_embedding=True,
        ignored=frozenset({"mlp_bias"}),
    )
    ropes = frozenset({RopeKind.LINEAR, RopeKind.YARN})
    slides = True
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

    def read(self, raw: Mapping[str, Any], where: Path) -> ModelConfig:
        """The config of a decoder of this family."""
        config = super().read(raw, where)
        if config.attention_soft_cap is not None:
            raise UnsupportedModel(f"{where}: soft-capped attention is not supported for Gemma 3")
        return config

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family."""
        super().check(config)
        if config.attention_bias:
            raise UnsupportedModel("a Gemma 3 model with attention biases is not supported")
        if config.local_rope is not None and config.local_rope.scaling is not None:
            raise UnsupportedModel(
                "a Gemma 3 model with scaled positions in its local layers is not supported"
            )

    def norm(self) -> Change:
        """Stored less one."""
        return Change.ADD_ONE

    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""
        yield from vectors(config, index, NORMS, Change.ADD_ONE)
        for letter, factor in (("q", query_factor(config, 62)), ("k", 1.0)):
            yield TensorRule(
                f"model.layers.{index}.self_attn.{letter}_norm.weight",
                f"blk.{index}.attn_{letter}_norm.weight",
                (config.head_dim,),
                Change.ADD_ONE,
                factor=factor,
            )
        yield from attention_and_mlp(config, index)

    def from_gguf(self, raw: Mapping[str, Any], hyper: Callable[[str], object]) -> dict[str, Any]:
        """What config.json says beyond the common keys, of a GGUF file."""
        return {
            "query_pre_attn_scalar": assumed_scale(raw, 62),
            "rope_local_base_freq": hyper("rope.freq_base_swa") or 10_000.0,
        }

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        numbers = super().metadata(config)
        numbers |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        if config.final_soft_cap is not None:
            numbers["final_logit_softcapping"] = config.final_soft_cap
        if config.sliding_window is None or not any(config.sliding_layers):
            return numbers
        local = config.local_rope or config.rope
        return numbers | windows(config, PATTERN) | {"rope.freq_base_swa": local.theta}
