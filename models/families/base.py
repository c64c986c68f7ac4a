"""What a family of models is to a converter: names, shapes and quirks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from models.config import ModelConfig, RopeKind
from models.errors import UnsupportedModel


class Change(StrEnum):
    """What becomes of a tensor's values on the way from Hugging Face's layout to llama.cpp's."""

    NONE = "none"
    INTERLEAVE = "interleave"
    """The halves of each head are interleaved: llama.cpp turns rows (0, 1), Hugging Face (0, d/2)."""
    ADD_ONE = "add one"
    """Gemma stores its norms' weights less one."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One tensor of the model: its name on both sides, its shape and its change."""

    source: str
    """In a Hugging Face checkpoint."""
    target: str
    """In a GGUF file."""
    shape: tuple[int, ...]
    """Rows first, as numpy and torch have it; equal on both sides."""
    change: Change = Change.NONE
    heads: int = 0
    """Of `INTERLEAVE`."""
    factor: float = 1.0
    """Multiplied last."""


Metadata = dict[str, int | float | str | list[bool]]


class Family(ABC):
    """A family of models that share their layout."""

    name: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]
    """Classes in transformers."""
    gguf: ClassVar[str]
    """llama.cpp's name of the architecture."""
    defaults: ClassVar[Mapping[str, Any]]
    """What transformers assumes where config.json is silent."""
    activation: ClassVar[str]

    def check(self, config: ModelConfig) -> None:
        """Refuse what llama.cpp can't compute for this family.

        Raises:
            UnsupportedModel: with the reason.
        """
        if config.activation not in {self.activation, ""}:
            raise UnsupportedModel(
                f"a {self.name} model with activation {config.activation!r}: "
                f"llama.cpp computes {self.activation}"
            )
        if config.bidirectional:
            raise UnsupportedModel("a model with bidirectional attention can't generate text")
        if config.attention_soft_cap is not None:
            raise UnsupportedModel(f"a {self.name} model with soft-capped attention is not supported")

    @abstractmethod
    def layer(self, config: ModelConfig, index: int) -> Iterator[TensorRule]:
        """The tensors of one decoder layer."""

    def norm(self) -> Change:
        """What becomes of a norm's weights."""
        return Change.NONE

    def tensors(self, config: ModelConfig, *, tied: bool) -> Iterator[TensorRule]:
        """All tensors, in the order in which they are written."""
        vocabulary = (config.vocab_size, config.hidden_size)
        yield TensorRule("model.embed_tokens.weight", "token_embd.weight", vocabulary)
        for index in range(config.n_layers):
            yield from self.layer(config, index)
        yield TensorRule("model.norm.weight", "output_norm.weight", (config.hidden_size,), self.norm())
        if not tied:
            yield TensorRule("lm_head.weight", "output.weight", vocabulary)

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        numbers: Metadata = {
            "block_count": config.n_layers,
            "context_length": config.n_ctx,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.n_heads,
            "attention.head_count_kv": config.n_kv_heads,
            "attention.layer_norm_rms_epsilon": config.norm_eps,
            "rope.freq_base": config.rope.theta,
            "rope.dimension_count": config.head_dim,
            "vocab_size": config.vocab_size,
        }
        if config.head_dim * config.n_heads != config.hidden_size:
            numbers |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        return numbers | self.rope_scaling(config)

    def rope_scaling(self, config: ModelConfig) -> Metadata:
        """The stretch of the context, where llama.cpp has keys for it; llama3's goes into a tensor."""
        scaling = config.rope.scaling
        if scaling is None or scaling.kind is RopeKind.LLAMA3:
            return {}
        numbers: Metadata = {"rope.scaling.type": scaling.kind.value, "rope.scaling.factor": scaling.factor}
        if scaling.kind is RopeKind.YARN:
            numbers |= {
                "rope.scaling.original_context_length": scaling.original_context,
                "rope.scaling.yarn_beta_fast": scaling.beta_fast,
                "rope.scaling.yarn_beta_slow": scaling.beta_slow,
            }
            if scaling.attention_factor is not None:
                raise UnsupportedModel("yarn with an attention_factor of its own is not supported")
        return numbers


def attention_and_mlp(
    config: ModelConfig, index: int, *, rotary: Change = Change.NONE
) -> Iterator[TensorRule]:
    """The seven matrices of a layer with a gated MLP, named as Llama names them. Shapes are [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    source, target = f"model.layers.{index}", f"blk.{index}"
    q_heads = config.n_heads if rotary is Change.INTERLEAVE else 0
    k_heads = config.n_kv_heads if rotary is Change.INTERLEAVE else 0
    for theirs, ours, shape, change, heads in (
        ("self_attn.q_proj", "attn_q", (config.q_size, hidden), rotary, q_heads),
        ("self_attn.k_proj", "attn_k", (config.kv_size, hidden), rotary, k_heads),
        ("self_attn.v_proj", "attn_v", (config.kv_size, hidden), Change.NONE, 0),
        ("self_attn.o_proj", "attn_output", (hidden, config.q_size), Change.NONE, 0),
        ("mlp.gate_proj", "ffn_gate", (inner, hidden), Change.NONE, 0),
        ("mlp.up_proj", "ffn_up", (inner, hidden), Change.NONE, 0),
        ("mlp.down_proj", "ffn_down", (hidden, inner), Change.NONE, 0),
    ):
        yield TensorRule(f"{source}.{theirs}.weight", f"{target}.{ours}.weight", shape, change, heads)
