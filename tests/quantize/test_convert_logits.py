"""Tiny models of every family and quirk: llama.cpp on the converted file computes what transformers does."""

from pathlib import Path

import numpy as np
import pytest

from quantize.pipeline import Request, run
from quantize.plan import target_of
from tests.oracles import hf_models
from tests.oracles.gguf_bytes import without_receipt
from tests.oracles.hf_configs import CONVERTIBLE, build
from tests.oracles.llama_reference import loaded

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("case", CONVERTIBLE)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    """In float32, to rounding, over more positions than the sliding window has."""
    folder = tmp_path / "model"
    config = CONVERTIBLE[case]()
    if config.model_type.startswith("gemma"):
        config.vocab_size = hf_models.save_sentencepiece(folder)
    else:
        config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3) + 3  # rows without a token
    model = hf_models.save_model(folder, config)
    result = run(Request(folder, target_of("f32"), tmp_path / "out.gguf"))
    ids = np.random.default_rng(1).integers(4, config.vocab_size - 3, 100).tolist()
    expected = hf_models.logits(model, ids)
    with loaded(result.path, 128) as reference:
        seen = reference.logits(ids)
    scale = np.abs(expected).max()
    assert scale > 1, "a model this flat proves nothing"
    # llama.cpp takes GELU, and Gemma has it, from a table in float16.
    limit = 2e-3 if config.model_type.startswith("gemma") else 1e-5
    assert np.abs(seen - expected).max() < limit * scale
    assert np.abs(_by_our_decoder(result.path, ids) - expected).max() < 2e-5 * scale


def _by_our_decoder(path: Path, ids: list[int]) -> np.ndarray:
    """From the GGUF file: its metadata and layout read back."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    torch.set_num_threads(1)
    with open_weights(path) as weights:
        return Decoder(weights).forward(torch.tensor([ids]))[0].numpy()


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_type_stays_close(kind: str, dtype: str, tmp_path: Path) -> None:
    """16 and 8 bits round, and no more than that; sources in every type are read."""
    folder = tmp_path / "model"
    config = build("LlamaConfig", {"vocab_size": hf_models.save_bpe(folder)})
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
    config = build("Qwen2Config", {"vocab_size": hf_models.save_bpe(tmp_path / "one", hf_models.QWEN2)})
    hf_models.save_bpe(tmp_path / "many", hf_models.QWEN2)
    hf_models.save_model(tmp_path / "one", config)
    hf_models.save_model(tmp_path / "many", config, max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 3
    (tmp_path / "one").rename(tmp_path / "model")
    one = run(Request(tmp_path / "model", target_of("f16"), tmp_path / "one.gguf")).path
    (tmp_path / "model").rename(tmp_path / "gone")
    (tmp_path / "many").rename(tmp_path / "model")
    many = run(Request(tmp_path / "model", target_of("f16"), tmp_path / "many.gguf")).path
    assert without_receipt(one) == without_receipt(many)
