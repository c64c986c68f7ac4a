"""Experts that transformers saved in one tensor for all of a layer."""

from pathlib import Path

import numpy as np
import pytest

from models.checkpoint import open_checkpoint
from models.errors import BrokenModelFile
from quantize.formats.safetensors import Tensor, write_file
from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_seen_one_by_one(dtype: str, tmp_path: Path) -> None:
    """As transformers itself writes both forms of one model: the same names, the same bits."""
    config = CONVERTIBLE["qwen3 moe"]  # saving a model writes its type into its config
    hf_models.save_model(tmp_path / "plain", config(), dtype)
    hf_models.save_model(tmp_path / "fused", config(), dtype, save_original_format=False)
    from safetensors import safe_open

    with safe_open(tmp_path / "fused" / "model.safetensors", "np") as file:
        assert any(name.endswith("experts.gate_up_proj") for name in file.keys())  # noqa: SIM118 - no dict
    with open_checkpoint(tmp_path / "plain") as plain, open_checkpoint(tmp_path / "fused") as fused:
        assert fused.tensors.keys() == plain.tensors.keys()
        for name, tensor in plain.tensors.items():
            assert fused.tensors[name].shape == tensor.shape, name
            assert np.array_equal(fused.stored_rows(name), plain.stored_rows(name)), name


def test_they_are_quantized(tmp_path: Path) -> None:
    """To the same bytes as the other form."""
    from quantize.layers import LayerRequest, run
    from quantize.recipe import Format, Method, Recipe

    weights = []
    for name, form in (("plain", {}), ("fused", {"save_original_format": False})):
        folder = tmp_path / name
        config = CONVERTIBLE["qwen3 moe"]()
        config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3)
        hf_models.save_model(folder, config, "bfloat16", **form)
        recipe = Recipe(Format.GPTQ, Method.RTN)
        made = run(LayerRequest(folder, recipe, tmp_path / f"{name}-out", evaluated=False, threads=1))
        weights.append((made.path / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_an_odd_number_of_rows(tmp_path: Path) -> None:
    """Gate and up can't be told apart."""
    (tmp_path / "config.json").write_text("{}")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    write_file(tmp_path / "model.safetensors", {name: Tensor(np.zeros((2, 3, 4), np.float32))})
    with pytest.raises(BrokenModelFile, match="has 3 rows, an odd number for gate and up"):
        open_checkpoint(tmp_path)
