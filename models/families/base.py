"""What a family of models is to a converter: names, shapes and quirks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from models import config as model_config
from models.config import Layout, ModelConfig, RopeKind, RopeScaling, llama3_factors
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
    parts: tuple[str, ...] = ()
    """Where it is a stack of several in the checkpoint: their names in order; `source` is the first."""
    exact: bool = False
    """Stays in float32."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names in the checkpoint."""
        return self.parts or (self.source,)

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Of each of `sources`."""
        return self.shape[1:] if self.parts else self.shape


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
    activation: ClassVar[str] = "silu"
    layout: ClassVar[Layout] = Layout()
    partial_rotary: ClassVar[bool] = False
    """Whether a part of each head may be rotated and the rest not."""
    ropes: ClassVar[frozenset[RopeKind]] = frozenset({RopeKind.LINEAR, RopeKind.YARN})
    """Scalings of the positions that llama.cpp computes for this family."""
    slides: ClassVar[bool] = False
    """Whether llama.cpp keeps to a sliding window."""
    needs_head: ClassVar[bool] = False
    """Whether llama.cpp wants the output matrix even where it is the embedding."""

    def read(self, raw: Mapping[str, Any], where: Path) -> ModelConfig:
        """The config of a decoder of this family.

        Raises:
            BrokenModelFile: a number is missing, of the wrong type or impossible.
            UnsupportedModel: what no model of this family has.
        """
        config = model_config.parse(raw, self.defaults, where, self.layout)
        if config.bidirectional:
            raise UnsupportedModel(f"{where}: a model with bidirectional attention can't generate text")
        if config.rope.fraction != 1 and not self.partial_rotary:
            raise UnsupportedModel(
                f"{where}: rotary positions on a part of each head are not supported for {self.name}"
            )
        return config

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
        scaling = config.rope.scaling
        if scaling is not None:
            if scaling.kind not in self.ropes:
                raise UnsupportedModel(
                    f"a {self.name} model with {scaling.kind} rope scaling is not supported"
                )
            if scaling.kind is RopeKind.YARN and not scaling.truncate:
                raise UnsupportedModel("yarn without rounding of its ramp: llama.cpp rounds")

    def notes(self, config: ModelConfig) -> tuple[str, ...]:
        """What a person should know of a converted model."""
        if self.context(config) == config.n_ctx:
            return ()
        return (
            f"its context is {self.context(config)} tokens, not {config.n_ctx}: some layers see only so far "
            "back, and llama.cpp would let them see everything",
        )

    def context(self, config: ModelConfig) -> int:
        """Tokens for which llama.cpp computes what the model was trained to."""
        return config.n_ctx if self.slides else config.least_window

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
        elif self.needs_head:
            yield TensorRule("model.embed_tokens.weight", "output.weight", vocabulary)

    def metadata(self, config: ModelConfig) -> Metadata:
        """The architecture's numbers, without the prefix."""
        numbers: Metadata = {
            "block_count": config.n_layers,
            "context_length": self.context(config),
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.n_heads,
            "attention.head_count_kv": config.n_kv_heads,
            "attention.layer_norm_rms_epsilon": config.norm_eps,
            "rope.freq_base": config.rope.theta,
            "rope.dimension_count": config.rotary_dim,
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
        numbers: Metadata = {"rope.scaling.type": scaling.kind.value}
        if scaling.kind is not RopeKind.LINEAR:
            numbers["rope.scaling.original_context_length"] = scaling.original_context
        if scaling.kind is RopeKind.LONGROPE:
            numbers["rope.scaling.attn_factor"] = scaling.magnitude
            return numbers
        numbers["rope.scaling.factor"] = scaling.factor
        if scaling.kind is RopeKind.YARN:
            numbers |= {
                "rope.scaling.yarn_beta_fast": scaling.beta_fast,
                "rope.scaling.yarn_beta_slow": scaling.beta_slow,
            }
            usual = replace(scaling, attention_factor=None).magnitude
            if scaling.magnitude != usual:
                numbers["rope.scaling.attn_factor"] = scaling.magnitude / usual
        return numbers

    def from_gguf(self, raw: Mapping[str, Any], hyper: Callable[[str], object]) -> dict[str, Any]:
        """What config.json says beyond the common keys, of a GGUF file.

        Args:
            raw: the common keys.
            hyper: a value of the file's metadata, without the prefix; None if absent.
        """
        return {}

    def rope_tensors(self, config: ModelConfig) -> dict[str, list[float]]:
        """What each rotary frequency is divided by, where llama.cpp has tensors for it."""
        scaling: RopeScaling | None = config.rope.scaling
        if scaling is None:
            return {}
        if scaling.kind is RopeKind.LLAMA3:
            factors = llama3_factors(scaling, config.rope.theta, config.rotary_dim)
            return {"rope_freqs.weight": factors}
        if scaling.kind is RopeKind.LONGROPE:
            return {
                "rope_factors_long.weight": list(scaling.long_factors),
                "rope_factors_short.weight": list(scaling.short_factors),
            }
        return {}


def vectors(
    config: ModelConfig, index: int, pairs: Mapping[str, str], change: Change = Change.NONE
) -> Iterator[TensorRule]:
    """Norms over the hidden state: {Hugging Face's name: llama.cpp's}."""
    for theirs, ours in pairs.items():
        yield TensorRule(
            f"model.layers.{index}.{theirs}.weight",
            f"blk.{index}.{ours}.weight",
            (config.hidden_size,),
            change,
        )


PRE_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def attention_and_mlp(
    config: ModelConfig, index: int, *, rotary: Change = Change.NONE
) -> Iterator[TensorRule]:
    """The seven matrices of a layer with a gated MLP, named as Llama names them."""
    yield from attention(config, index, rotary=rotary)
    yield from mlp(config, index)


def attention(config: ModelConfig, index: int, *, rotary: Change = Change.NONE) -> Iterator[TensorRule]:
    """The four matrices of attention, and their biases where it has some. Shapes are [out, in]."""
    hidden = config.hidden_size
    for letter, ours, heads in (("q", "attn_q", config.n_heads), ("k", "attn_k", config.n_kv_heads),
                                ("v", "attn_v", 0), ("o", "attn_output", 0)):  # fmt: skip
        source, target = f"model.layers.{index}.self_attn.{letter}_proj", f"blk.{index}.{ours}"
        change = rotary if heads else Change.NONE
        heads_changed = heads if change is Change.INTERLEAVE else 0
        rows = {"q": config.q_size, "o": hidden}.get(letter, config.kv_size)
        columns = config.q_size if letter == "o" else hidden
        yield TensorRule(f"{source}.weight", f"{target}.weight", (rows, columns), change, heads_changed)
        if config.attention_bias or (config.qkv_bias and letter != "o"):
            yield TensorRule(f"{source}.bias", f"{target}.bias", (rows,), change, heads_changed)


def mlp(config: ModelConfig, index: int) -> Iterator[TensorRule]:
    """The three matrices of a gated MLP, and their biases where it has some."""
    hidden, inner = config.hidden_size, config.intermediate_size
    for kind, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
        source, target = f"model.layers.{index}.mlp.{kind}_proj", f"blk.{index}.ffn_{kind}"
        yield TensorRule(f"{source}.weight", f"{target}.weight", shape)
        if config.mlp_bias:
            yield TensorRule(f"{source}.bias", f"{target}.bias", shape[:1])
