"""Small configs of every family and quirk, as transformers has them, with two to eight layers."""

from collections.abc import Callable
from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
}


def longrope(pairs: int, context: int) -> dict[str, Any]:
    """Factors for each of `pairs` frequencies."""
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
        "long_factor": [1.0 + 0.7 * i for i in range(pairs)],
        "original_max_position_embeddings": context,
    }


def build(kind: str, options: dict[str, Any]) -> Any:
    """A config of the class in transformers of that name."""
    import transformers

    return getattr(transformers, kind)(**{**SMALL, **options})


def make(kind: str, **options: Any) -> Callable[[], Any]:
    """Makes a config when it is called, so that transformers is imported then."""
    return lambda: build(kind, options)


def gemma3(**options: Any) -> Callable[[], Any]:
    small = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 8}
    return make("Gemma3TextConfig", **{**small, **options})


def gemma2(**options: Any) -> Callable[[], Any]:
    small = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 4}
    return make("Gemma2Config", **{**small, **options})


def qwen3_moe(**options: Any) -> Callable[[], Any]:
    small = {
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    }
    return make("Qwen3MoeConfig", **{**small, **options})


def granite(**options: Any) -> Callable[[], Any]:
    multipliers = {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.5,
    }
    return make("GraniteConfig", **{**multipliers, **options})


CONVERTIBLE: dict[str, Callable[[], Any]] = {
    "llama": make("LlamaConfig", tie_word_embeddings=False),
    "llama tied": make("LlamaConfig", tie_word_embeddings=True),
    "llama with a head of keys for each": make("LlamaConfig", num_key_value_heads=4),
    "llama with one head for keys": make("LlamaConfig", num_key_value_heads=1),
    "llama with wide heads": make("LlamaConfig", head_dim=32),
    "llama with biases": make("LlamaConfig", attention_bias=True, mlp_bias=True),
    "llama with llama3 rope": make("LlamaConfig", rope_parameters=LLAMA3),
    "llama with linear rope": make("LlamaConfig", rope_parameters=LINEAR),
    "llama with longrope": make("LlamaConfig", rope_parameters={**longrope(8, 32), "factor": 8.0}),
    "mistral": make("MistralConfig", sliding_window=None, head_dim=32),
    "mistral tied": make("MistralConfig", sliding_window=None, tie_word_embeddings=True),
    "qwen2": make("Qwen2Config", tie_word_embeddings=False),
    "qwen2 tied": make("Qwen2Config", tie_word_embeddings=True, rope_parameters={"rope_theta": 1e6}),
    "qwen2 with yarn": make("Qwen2Config", rope_parameters=YARN),
    "qwen2 with yarn of its own magnitude": make(
        "Qwen2Config", rope_parameters={**YARN, "attention_factor": 1.3}
    ),
    "qwen3": make("Qwen3Config", head_dim=32),
    "qwen3 tied": make("Qwen3Config", head_dim=16, tie_word_embeddings=True),
    "qwen3 with yarn": make("Qwen3Config", head_dim=16, rope_parameters=YARN),
    "qwen3 moe": qwen3_moe(),
    "qwen3 moe tied": qwen3_moe(num_experts=4, num_experts_per_tok=3, tie_word_embeddings=True),
    "gemma2": gemma2(),
    "gemma2 with low caps": gemma2(attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma2 with its own scale": gemma2(query_pre_attn_scalar=24, head_dim=32),
    "gemma3": gemma3(),
    "gemma3 with another pattern": gemma3(
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2
        + ["full_attention", "sliding_attention"]
    ),
    "gemma3 with its own scale": gemma3(query_pre_attn_scalar=24),
    "gemma3 with a soft cap": gemma3(final_logit_softcapping=5.0),
    "gemma3 with linear rope": gemma3(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        }
    ),
    "gemma3 untied": gemma3(tie_word_embeddings=False),
    "phi3": make("Phi3Config"),
    "phi3 in a long text": make("Phi3Config", rope_parameters=longrope(8, 64)),
    "phi3 in a short text": make("Phi3Config", rope_parameters=longrope(8, 200)),
    "phi3 with a part of each head": make(
        "Phi3Config",
        tie_word_embeddings=True,
        rope_parameters={**longrope(6, 64), "partial_rotary_factor": 0.75},
    ),
    "smollm3": make("SmolLM3Config", num_hidden_layers=5),
    "smollm3 untied with yarn": make(
        "SmolLM3Config", num_hidden_layers=4, tie_word_embeddings=False, rope_parameters=YARN
    ),
    "olmo2": make("Olmo2Config"),
    "olmo2 tied": make("Olmo2Config", tie_word_embeddings=True, num_key_value_heads=4),
    "granite": granite(),
    "granite tied with biases": granite(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "granite with llama3 rope": granite(rope_parameters=LLAMA3),
}
"""What llama.cpp computes as well."""

OTHER: dict[str, Callable[[], Any]] = {
    "mistral with a window": make("MistralConfig", sliding_window=8),
    "mistral with windows in some layers": make(
        "MinistralConfig",
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen2 with windows": make("Qwen2Config", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen2 with yarn that is not rounded": make("Qwen2Config", rope_parameters={**YARN, "truncate": False}),
    "llama with yarn of two magnitudes": make(
        "LlamaConfig", rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}
    ),
    "qwen3 with windows and biases": make(
        "Qwen3Config",
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    ),
    "qwen3 moe with layers without experts": qwen3_moe(norm_topk_prob=False, mlp_only_layers=[1]),
    "qwen3 moe in every second layer": qwen3_moe(
        norm_topk_prob=False, decoder_sparse_step=2, use_sliding_window=True, sliding_window=8
    ),
    "gemma2 without caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma2 untied with biases": gemma2(attention_bias=True, tie_word_embeddings=False),
    "gemma3 with windows as long as the text": gemma3(sliding_window=100),
    "gemma3 with windows of more than a block": gemma3(sliding_window=60, num_hidden_layers=2),
    "phi3 with a window": make("Phi3Config", sliding_window=8),
    "smollm3 with other layers without positions": make(
        "SmolLM3Config",
        no_rope_layers=[0, 1, 1],
        use_sliding_window=True,
        sliding_window=8,
        attention_bias=True,
    ),
    "olmo2 with biases": make("Olmo2Config", attention_bias=True, rope_parameters=LLAMA3),
}
"""What it would compute otherwise, or not load."""
