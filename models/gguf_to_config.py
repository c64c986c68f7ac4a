"""The config.json that says of a model what its GGUF file's metadata do, as transformers reads it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.config import ModelConfig, RopeKind, llama3_factors
from models.families import Family
from models.gguf import GGUFHeader
from models.gguf_config import config_of, raw_config
from models.rope_config import RopeScaling

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
    "SmolLM3ForCausalLM": "smollm3",
    "Olmo2ForCausalLM": "olmo2",
    "GraniteForCausalLM": "granite",
}
"""Of each class, the name that transformers finds it by."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CONTEXTS = tuple(2**power for power in range(5, 18))
"""That models were first trained on."""
CLOSE = 2e-6
"""Float32's rounding of a factor."""


def hugging_face_config(header: GGUFHeader, family: Family, dtype: str) -> dict[str, Any]:
    """A config.json.

    Args:
        header: of the file.
        family: of the model.
        dtype: of the weights, as safetensors calls it.

    Raises:
        BrokenModelFile: a number is missing, of the wrong type or impossible.
        UnsupportedModel: a rope scaling that is not supported, or layers of different sizes.
    """
    config = config_of(header, family)
    raw = {key: _tidy(value) for key, value in raw_config(header, family).items() if value is not None}
    for key in ("norm_topk_prob", "use_sliding_window", "sliding_window_pattern", "partial_rotary_factor"):
        raw.pop(key, None)
    if not raw.get("mlp_bias"):
        raw.pop("mlp_bias", None)
    if "hidden_activation" in family.defaults:
        raw["hidden_activation"] = raw.pop("hidden_act")
    if config.experts is not None:
        raw["norm_topk_prob"] = config.experts.normalized
    raw["model_type"] = MODEL_TYPES[family.architectures[0]]
    raw |= _windows(config, family) | _rope(config)
    raw["torch_dtype"] = DTYPES[dtype]
    name = header.metadata.get("general.name")
    if isinstance(name, str) and name:
        raw["_name_or_path"] = name
    return dict(sorted(raw.items()))


def _windows(config: ModelConfig, family: Family) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "use_sliding_window" in family.defaults:
        found["use_sliding_window"] = config.sliding_window is not None
    if config.sliding_window is None:
        return found | {"sliding_window": None}
    found["sliding_window"] = config.sliding_window
    if "layer_types" not in family.layout.ignored:
        kinds = {True: "sliding_attention", False: "full_attention"}
        found["layer_types"] = [kinds[slides] for slides in config.sliding_layers]
    return found


def _rope(config: ModelConfig) -> dict[str, Any]:
    rope, scaling = config.rope, config.rope.scaling
    found: dict[str, Any] = {"rope_theta": _tidy(rope.theta), "rope_scaling": None}
    if rope.fraction != 1:
        found["partial_rotary_factor"] = rope.fraction
    if config.local_rope is not None:
        found["rope_local_base_freq"] = _tidy(config.local_rope.theta)
    if scaling is None:
        return found
    context = scaling.original_context
    numbers: dict[str, Any] = {"rope_type": scaling.kind.value, "factor": _tidy(scaling.factor)}
    if scaling.kind is RopeKind.YARN:
        numbers |= {
            "original_max_position_embeddings": context,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
        }
    elif scaling.kind is RopeKind.LONGROPE:
        llama3 = _llama3(scaling, config)
        if llama3 is not None:
            return found | {"rope_scaling": llama3}
        numbers |= {
            "short_factor": [_tidy(factor) for factor in scaling.short_factors],
            "long_factor": [_tidy(factor) for factor in scaling.long_factors],
            "original_max_position_embeddings": context,
        }
        found["original_max_position_embeddings"] = context
    if scaling.attention_factor is not None:
        numbers["attention_factor"] = _tidy(scaling.attention_factor)
    return found | {"rope_scaling": numbers}


def _llama3(scaling: RopeScaling, config: ModelConfig) -> dict[str, Any] | None:
    """The numbers of Llama 3's stretch that make these factors; None: none do that are in use."""
    if scaling.short_factors != scaling.long_factors:
        return None
    factor = max(scaling.short_factors)
    for context in CONTEXTS:
        tried = RopeScaling(RopeKind.LLAMA3, factor, context)
        if _alike(llama3_factors(tried, config.rope.theta, config.rotary_dim), scaling.short_factors):
            return {
                "rope_type": RopeKind.LLAMA3.value,
                "factor": _tidy(factor),
                "low_freq_factor": tried.low_freq_factor,
                "high_freq_factor": tried.high_freq_factor,
                "original_max_position_embeddings": context,
            }
    return None


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= CLOSE * b for a, b in zip(one, other, strict=True))


def _tidy(value: Any) -> Any:
    """Of a float32 the shortest number that stands for it: 1e-05 instead of 9.999999747378752e-06."""
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value
