"""The config of a decoder from a GGUF file's metadata, by way of the config.json that says the same."""

from typing import Any

from models.config import ModelConfig
from models.errors import UnsupportedModel, damaged
from models.families import FAMILIES, Family
from models.gguf import GGUFHeader, LazyArray

_NUMBERS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.scale": "attention_multiplier",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "rope.freq_base": "rope_theta",
}


def family_named(header: GGUFHeader) -> Family:
    """The family of a GGUF file.

    Raises:
        UnsupportedModel: none that is known here.
    """
    for family in FAMILIES:
        if family.gguf == header.architecture:
            return family
    known = ", ".join(sorted({family.gguf for family in FAMILIES}))
    raise UnsupportedModel(
        f"{header.path} is of the architecture {header.architecture!r}: supported are {known}"
    )


def config_of(header: GGUFHeader, family: Family) -> ModelConfig:
    """The config of a GGUF file.

    Raises:
        BrokenModelFile: a number is missing, of the wrong type or impossible.
        UnsupportedModel: a rope scaling that is not supported, or layers of different sizes.
    """
    return family.read(raw_config(header, family), header.path)


def raw_config(header: GGUFHeader, family: Family) -> dict[str, Any]:
    """What a config.json would say of it, as far as `config_of` asks.

    Raises:
        BrokenModelFile: there is no embedding.
        UnsupportedModel: layers of different sizes.
    """
    raw: dict[str, Any] = {
        "architectures": list(family.architectures[:1]),
        "hidden_act": family.activation,
        "vocab_size": _vocabulary_size(header),
        "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in header.tensors},
        "norm_topk_prob": True,
        "use_sliding_window": True,
        "sliding_window": None,
    }
    for key, theirs in _NUMBERS.items():
        value = _scalar(header, key)
        if value is not None:
            raw[theirs] = value
    names = {tensor.name for tensor in header.tensors}
    if not family.layout.qkv_bias:
        raw["attention_bias"] = "blk.0.attn_q.bias" in names
    raw["mlp_bias"] = "blk.0.ffn_gate.bias" in names
    raw |= _windows(header) | _rope(header, raw)
    return raw | family.from_gguf(raw, header.hyper)


def _scalar(header: GGUFHeader, key: str) -> Any:
    value = header.hyper(key)
    if not isinstance(value, LazyArray):
        return value
    numbers = {int(number) for number in value.read_numbers()}
    if len(numbers) != 1:
        raise UnsupportedModel(f"{header.path}: {key} differs from layer to layer, which is not supported")
    return numbers.pop()


def _vocabulary_size(header: GGUFHeader) -> int:
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            return tensor.shape[-1]
    raise damaged(header.path, "it lacks token_embd.weight")


def _windows(header: GGUFHeader) -> dict[str, Any]:
    pattern = header.hyper("attention.sliding_window_pattern")
    if isinstance(pattern, LazyArray):
        kinds = {True: "sliding_attention", False: "full_attention"}
        return {"layer_types": [kinds[bool(number)] for number in pattern.read_numbers()]}
    return {"sliding_window_pattern": pattern} if pattern is not None else {}


def _rope(header: GGUFHeader, raw: dict[str, Any]) -> dict[str, Any]:
    """Scaling in numbers, or as tensors with a factor for each frequency."""
    found: dict[str, Any] = {}
    rotated = header.hyper("rope.dimension_count")
    heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
    if isinstance(rotated, int) and isinstance(heads, int) and isinstance(hidden, int) and heads:
        width = raw.get("head_dim", hidden // heads)
        if isinstance(width, int) and 0 < rotated < width:
            found["partial_rotary_factor"] = rotated / width
    kind = header.hyper("rope.scaling.type")
    context = header.hyper("rope.scaling.original_context_length")
    magnitude = header.hyper("rope.scaling.attn_factor")
    short, long = (_factors(header, f"rope_factors_{name}.weight") for name in ("short", "long"))
    every = _factors(header, "rope_freqs.weight")
    if every is not None:
        # Long or not, the factors are the same.
        found["rope_scaling"] = {
            "rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0, "short_factor": every,
            "long_factor": every, "original_max_position_embeddings": 2**30,
        }  # fmt: skip
    elif short is not None and long is not None:
        found["rope_scaling"] = {
            "rope_type": "longrope", "factor": 1.0, "attention_factor": magnitude or 1.0,
            "short_factor": short, "long_factor": long, "original_max_position_embeddings": context,
        }  # fmt: skip
    elif kind in {"linear", "yarn"} and header.hyper("rope.scaling.factor") is not None:
        found["rope_scaling"] = {
            "rope_type": kind, "factor": header.hyper("rope.scaling.factor"),
            "original_max_position_embeddings": context,
            "beta_fast": header.hyper("rope.scaling.yarn_beta_fast"),
            "beta_slow": header.hyper("rope.scaling.yarn_beta_slow"),
        }  # fmt: skip
        if kind == "yarn" and isinstance(magnitude, float):
            found["rope_scaling"]["attention_factor"] = magnitude * _usual(header)
    return found


def _usual(header: GGUFHeader) -> float:
    """What yarn multiplies cosine and sine by where a file says nothing else."""
    import math

    factor = header.hyper("rope.scaling.factor")
    return 0.1 * math.log(factor) + 1 if isinstance(factor, float) and factor > 1 else 1.0


def _factors(header: GGUFHeader, name: str) -> list[float] | None:
    for tensor in header.tensors:
        if tensor.name == name:
            import numpy as np

            with header.path.open("rb") as file:
                file.seek(header.data_offset + tensor.offset)
                raw = file.read(tensor.n_bytes)
            return [float(number) for number in np.frombuffer(raw, np.float32)]
    return None
