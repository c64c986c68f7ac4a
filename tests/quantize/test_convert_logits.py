"""Tiny models of every family and quirk: llama.cpp on the converted file computes what transformers does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.pipeline import Request, run
from quantize.plan import target_of
from tests.oracles import hf_models
from tests.oracles.llama_reference import loaded

pytestmark = pytest.mark.oracle

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**{**COMMON, **options})


def qwen2(**options: Any) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**{**COMMON, **options})


def gemma3(**options: Any) -> Any:
    from transformers import Gemma3TextConfig

    small = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 8}
    return Gemma3TextConfig(**{**COMMON, **small, **options})


CASES: dict[str, Any] = {
    "llama": lambda: llama(tie_word_embeddings=False),
    "llama tied": lambda: llama(tie_word_embeddings=True),
    "llama with one head for keys": lambda: llama(num_key_value_heads=1),
    "llama with wide heads": lambda: llama(head_dim=32),
    "llama with biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama with llama3 rope": lambda: llama(rope_parameters={**LLAMA3_SCALING, "rope_theta": 500.0}),
    "llama with linear rope": lambda: llama(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}
    ),
    "qwen2": lambda: qwen2(tie_word_embeddings=False),
    "qwen2 tied": lambda: qwen2(tie_word_embeddings=True, rope_parameters={"rope_theta": 1e6}),
    "qwen2 with yarn": lambda: qwen2(
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
        }
    ),
    "gemma3": gemma3,
    "gemma3 with another pattern": lambda: gemma3(
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2
        + ["full_attention", "sliding_attention"]
    ),
    "gemma3 with its own scale": lambda: gemma3(query_pre_attn_scalar=24),
    "gemma3 with a soft cap": lambda: gemma3(final_logit_softcapping=5.0),
    "gemma3 with linear rope": lambda: gemma3(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        }
    ),
    "gemma3 untied": lambda: gemma3(tie_word_embeddings=False),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    """In float32, to rounding, over more positions than the sliding window has."""
    folder = tmp_path / "model"
    config = CASES[case]()
    if config.model_type == "gemma3_text":
        config.vocab_size = hf_models.save_sentencepiece(folder)
    else:
        config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3) + 3  # rows without a token
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    model = hf_models.save_model(folder, config)
    result = run(Request(folder, target_of("f32"), tmp_path / "out.gguf"))
    ids = np.random.default_rng(1).integers(4, config.vocab_size - 3, 100).tolist()
    expected = hf_models.logits(model, ids)
    with loaded(result.path, 128) as reference:
        seen = reference.logits(ids)
    scale = np.abs(expected).max()
    assert scale > 1, "a model this flat proves nothing"
    # llama.cpp takes GELU, and Gemma has it, from a table in float16.
    limit = 2e-3 if config.model_type == "gemma3_text" else 1e-5
    assert np.abs(seen - expected).max() < limit * scale


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_type_stays_close(kind: str, dtype: str, tmp_path: Path) -> None:
    """16 and 8 bits round, and no more than that; sources in every type are read."""
    folder = tmp_path / "model"
    config = llama(vocab_size=hf_models.save_bpe(folder))
    model = hf_models.save_model(folder, config, dtype)
    result = run(Request(folder, target_of(kind), tmp_path / "out.gguf"))
    ids = list(range(3, 60))
    expected = hf_models.logits(model, ids)
    with loaded(result.path, 64) as reference:
        seen = reference.logits(ids)
    assert (
        np.abs(seen - expected).max()
        < {"f16": 0.01, "bf16": 0.04, "q8_0": 0.06}[kind] * np.abs(expected).max()
    )


def test_shards_give_the_same_file(tmp_path: Path) -> None:
    """In one file or in seven, the result is the same, byte by byte."""
    config = qwen2(vocab_size=hf_models.save_bpe(tmp_path / "one", hf_models.QWEN2))
    hf_models.save_bpe(tmp_path / "many", hf_models.QWEN2)
    hf_models.save_model(tmp_path / "one", config)
    hf_models.save_model(tmp_path / "many", config, max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 3
    (tmp_path / "one").rename(tmp_path / "model")
    one = run(Request(tmp_path / "model", target_of("f16"), tmp_path / "one.gguf")).path.read_bytes()
    (tmp_path / "model").rename(tmp_path / "gone")
    (tmp_path / "many").rename(tmp_path / "model")
    many = run(Request(tmp_path / "model", target_of("f16"), tmp_path / "many.gguf")).path.read_bytes()
    assert one == many
