"""The numbers that say how a model is built, checked before llama.cpp's assertions meet them."""

import math
import re
from dataclasses import dataclass

from models import architectures as known
from models.errors import BrokenModelFile, UnsupportedModel, damaged
from models.gguf import GGUFHeader, LazyArray, Value, ValueType

MAX_LAYERS = 512
MAX_EXPERTS = 1024
MAX_CONTEXT = 2**30
MAX_WIDTH = 2**20
MAX_HEADS = 2**14
MAX_HEAD_WIDTH = 2**14
MAX_REAL = 1e15
ROPE_SCALINGS = frozenset({"none", "linear", "yarn", "longrope"})


# Whose every layer is as `feed_forward_length` says; others have experts, or layers of several kinds.
DENSE = frozenset(
    {"llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "smollm3", "olmo2", "granite"}
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FFN_DOWN = re.compile(r"blk\.(?P<layer>[0-9]{1,6})\.ffn_down\.weight")


def check_hyperparameters(header: GGUFHeader) -> None:
    """Architecture, layers, heads, experts, rotation, context and windows are what llama.cpp can take.

    Raises:
        BrokenModelFile: a number is missing, of the wrong type, or out of range.
        UnsupportedModel: the architecture is unknown to this llama.cpp, or is no language model.
    """
    facts = Facts(header)
    _check_architecture(header)
    layers = facts.whole("block_count", 1, MAX_LAYERS)
    facts.whole("context_length", 1, MAX_CONTEXT)
    width = facts.whole("embedding_length", 1, MAX_WIDTH)
    _check_feed_forward(facts, facts.per_layer("feed_forward_length", layers, 0, MAX_WIDTH))
    _check_heads(facts, layers, width)
    _check_experts(facts, layers)
    _check_rope(facts)
    _check_windows(facts)
    _check_next_token_layers(facts, layers)
    for name in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        facts.real(name, 0.0, 1.0)
    prefix = facts.key("")
    for key, entry in header.fields.items():
        if key.startswith(prefix) and entry.type is ValueType.FLOAT32:
            facts.real(key.removeprefix(prefix), -MAX_REAL, MAX_REAL)


@dataclass(frozen=True, slots=True)
class Facts:
    """Typed access to the values under the architecture's prefix."""

    header: GGUFHeader

    def get(self, name: str) -> Value | None:
        return self.header.hyper(name)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A UINT32 from `low` to `high`; required, unless there is a default."""
        entry = self.header.fields.get(self.key(name))
        if entry is None:
            if default is None:
                raise damaged(self.header.path, f"it lacks {self.key(name)}")
            return default
        if entry.type is not ValueType.UINT32 or not isinstance(entry.value, int):
            raise self.broken(name, f"is {entry.type.shown}, not {ValueType.UINT32.shown}")
        if not low <= entry.value <= high:
            raise self.broken(name, f"is {entry.value}: {low} to {high} are possible")
        return entry.value

    def per_layer(self, name: str, layers: int, low: int, high: int) -> list[int]:
        """A UINT32 for all layers, or an array with one for each; [] if absent."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, LazyArray):
            return [self.whole(name, low, high)] * layers
        if value.type not in (ValueType.UINT32, ValueType.INT32):
            raise self.broken(name, f"is a list with {value.type.shown} for each layer, not a whole number")
        if value.count != layers:
            raise self.broken(name, f"has {value.count} values for {layers} layers")
        numbers = [int(number) for number in value.read_numbers()]
        for layer, number in enumerate(numbers):
            if not low <= number <= high:
                raise self.broken(name, f"is {number} in layer {layer}: {low} to {high} are possible")
        return numbers

    def real(self, name: str, low: float, high: float) -> float | None:
        """A FLOAT32 from `low` to `high`; None if absent."""
        entry = self.header.fields.get(self.key(name))
        if entry is None:
            return None
        if entry.type is not ValueType.FLOAT32 or not isinstance(entry.value, float):
            raise self.broken(name, f"is {entry.type.shown}, not {ValueType.FLOAT32.shown}")
        if not (math.isfinite(entry.value) and low <= entry.value <= high):
            raise self.broken(name, f"is {_shown(entry.value)}: {low:,g} to {high:,g} are possible")
        return entry.value

    def key(self, name: str) -> str:
        return f"{self.header.architecture}.{name}"

    def broken(self, name: str, what: str) -> BrokenModelFile:
        where = self.header.fields[self.key(name)].offset
        return damaged(self.header.path, f"{self.key(name)} {what}", where)


def _shown(number: float) -> str:
    if math.isnan(number):
        return "no number"
    return f"{number:,g}" if math.isfinite(number) else "infinite"


def _check_architecture(header: GGUFHeader) -> None:
    entry = header.fields.get("general.architecture")
    if entry is None:
        raise damaged(header.path, "it lacks general.architecture")
    name = entry.value
    if not isinstance(name, str) or not name:
        what = "empty" if isinstance(name, str) else entry.type.shown
        raise damaged(header.path, f"general.architecture is {what}, not a name", entry.offset)
    if not NAME.fullmatch(name):
        raise damaged(header.path, f"general.architecture is {name[:64]!r}, which is no name", entry.offset)
    if name in known.NOT_LANGUAGE_MODELS:
        raise UnsupportedModel(f"{header.path} is {known.NOT_LANGUAGE_MODELS[name]}: choose a language model")
    if name not in known.ARCHITECTURES:
        raise UnsupportedModel(
            f"{header.path} is of the architecture {name[:64]!r}, which this llama.cpp doesn't know: "
            "a newer edgechat may"
        )


def _check_heads(facts: Facts, layers: int, width: int) -> None:
    architecture = facts.header.architecture
    heads = facts.per_layer("attention.head_count", layers, 0, MAX_HEADS)
    if architecture in known.RECURRENT:
        return
    if not heads:
        raise damaged(facts.header.path, f"it lacks {facts.key('attention.head_count')}")
    kv_heads = facts.per_layer("attention.head_count_kv", layers, 0, MAX_HEADS) or heads
    may_lack = architecture in known.SOME_LAYERS_WITHOUT_ATTENTION
    for name, counts in (("attention.head_count", heads), ("attention.head_count_kv", kv_heads)):
        if max(counts) == 0 or (min(counts) == 0 and not may_lack):
            raise facts.broken(name, "is 0")
    for layer, (queries, keys) in enumerate(zip(heads, kv_heads, strict=True)):
        if keys and queries % keys:
            raise facts.broken(
                "attention.head_count_kv",
                f"is {keys} in layer {layer}, which doesn't divide the {queries} heads",
            )
    _check_head_width(facts, heads[0], width)


def _check_head_width(facts: Facts, heads: int, width: int) -> None:
    """The width of a head is that of its keys, its values and its rotation."""
    architecture = facts.header.architecture
    keys = facts.whole("attention.key_length", 1, MAX_HEAD_WIDTH, default=0)
    values = facts.whole("attention.value_length", 1, MAX_HEAD_WIDTH, default=0)
    if heads and width % heads and not (keys and values):
        raise facts.broken("attention.head_count", f"is {heads}, which doesn't divide the width {width}")
    keys = keys or (width // heads if heads else 0)
    values = values or (width // heads if heads else 0)
    if not keys or not values:
        return
    if keys != values and architecture not in known.KEYS_AND_VALUES_MAY_DIFFER:
        name = next(
            one for one in ("attention.key_length", "attention.value_length") if facts.get(one) is not None
        )
        raise facts.broken(name, f"makes keys {keys} wide, and values {values}")
    rotated = facts.whole("rope.dimension_count", 1, MAX_HEAD_WIDTH, default=keys)
    if rotated > keys or rotated % 2:
        raise facts.broken("rope.dimension_count", f"is {rotated}, in heads of {keys}")
    if rotated != keys and architecture in known.ROTATE_ALL:
        raise facts.broken("rope.dimension_count", f"is {rotated}, not the {keys} of a head")


def _check_feed_forward(facts: Facts, lengths: list[int]) -> None:
    """What the file says is what its matrices are: `ffn_down` takes as many numbers as a layer has within."""
    if facts.header.architecture not in DENSE:
        return
    layers = dict(enumerate(lengths))
    for tensor in facts.header.tensors:
        match = FFN_DOWN.fullmatch(tensor.name)
        length = layers.get(int(match["layer"])) if match else None
        if length is not None and tensor.shape and tensor.shape[0] != length:
            raise facts.broken(
                "feed_forward_length", f"is {length}, where {tensor.name} takes {tensor.shape[0]} numbers"
            )


def _check_experts(facts: Facts, layers: int) -> None:
    experts = facts.whole("expert_count", 0, MAX_EXPERTS, default=0)
    if experts <= 1 and facts.header.architecture in ("hunyuan-dense", "hunyuan_vl"):
        return  # llama.cpp ignores what these say then
    used = max(facts.per_layer("expert_used_count", layers, 0, MAX_EXPERTS), default=0)
    if used > experts:
        raise facts.broken("expert_used_count", f"is {used}, of {experts} experts")
    if experts and not used:
        raise facts.broken("expert_count", f"is {experts}, but none is used")
    groups = facts.whole("expert_group_count", 0, MAX_EXPERTS, default=0)
    groups_used = facts.whole("expert_group_used_count", 0, MAX_EXPERTS, default=0)
    if groups and (not experts or groups >= experts):
        raise facts.broken("expert_group_count", f"is {groups}, for {experts} experts")
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        raise facts.broken("expert_group_count", f"is {groups} ({groups_used} used), for {experts} experts")


def _check_rope(facts: Facts) -> None:
    scaling = facts.get("rope.scaling.type")
    if scaling is not None and (not isinstance(scaling, str) or scaling not in ROPE_SCALINGS):
        shown = scaling[:40] if isinstance(scaling, str) else scaling
        raise facts.broken("rope.scaling.type", f"is {shown!r}: {', '.join(sorted(ROPE_SCALINGS))} are known")
    for name in ("rope.freq_base", "rope.freq_base_swa"):
        facts.real(name, 1.0, MAX_REAL)
    for name in ("rope.scaling.factor", "rope.scale_linear"):
        if facts.real(name, 0.0, 1e6):  # 0: none
            facts.real(name, 1e-3, 1e6)
    facts.whole("rope.scaling.original_context_length", 1, MAX_CONTEXT, default=1)


def _check_windows(facts: Facts) -> None:
    name = "attention.sliding_window"
    low = 1 if facts.header.architecture in known.SLIDING_WINDOW else 0
    facts.whole(name, low, MAX_CONTEXT, default=1)


def _check_next_token_layers(facts: Facts, layers: int) -> None:
    extra = facts.whole("nextn_predict_layers", 0, MAX_LAYERS, default=0)
    if extra >= layers:
        raise facts.broken("nextn_predict_layers", f"is {extra}, of {layers} layers")
