"""Results that were packed into GGUF files, in llama.cpp: it is as close to what transformers computes with
the same weights as its own rounding of inputs to eight bits allows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.layers import LayerRequest
from quantize.layers import run as quantize
from quantize.pipeline import Request, default_target
from quantize.pipeline import run as convert
from quantize.recipe import Format, Method, Recipe
from tests.oracles import hf_models
from tests.oracles.hf_configs import build
from tests.oracles.llama_reference import loaded
from tests.oracles.packed_weights import take_weights

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]

BLOCK = 32
"""Inputs that ggml rounds to eight bits by one scale, wherever it multiplies by Q4_0, Q4_1 or Q8_0."""

FACTOR = 1.5
"""Inputs near the middle of two steps go either way, and what follows differs: not the same error, but one of
the same size."""

CASES = {
    "gptq": (Recipe(method=Method.RTN, group_size=32), "Q4_0"),
    "asymmetric gptq": (Recipe(method=Method.RTN, group_size=32, symmetric=False), "Q4_1"),
    "groups of two blocks": (Recipe(method=Method.RTN, group_size=64), "Q4_0"),
    "int8": (Recipe(format=Format.INT8, method=Method.RTN, bits=8), "Q8_0"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen2Config"])
def test_llama_cpp_computes_what_transformers_does(case: str, kind: str, tmp_path: Path) -> None:
    recipe, expected_type = CASES[case]
    source = tmp_path / "source"
    size = hf_models.save_bpe(source, hf_models.LLAMA3)
    config = build(kind, {"vocab_size": size, "intermediate_size": 128})
    model = hf_models.save_model(source, config, "bfloat16")
    folder = quantize(LayerRequest(source, recipe, tmp_path / "made", evaluated=False, threads=1)).path
    result = convert(Request(folder, default_target(folder), tmp_path / "out.gguf"))
    assert result.type == expected_type
    take_weights(model, folder)
    ids = np.random.default_rng(1).integers(4, size, 100).tolist()
    with loaded(result.path, 128) as reference:
        found = reference.logits(ids)
    plain = hf_models.logits(model, ids)
    round_inputs(model)
    rounded = hf_models.logits(model, ids)
    assert distance(found, plain) < FACTOR * distance(rounded, plain)


def round_inputs(model: Any) -> None:
    """Have the matrices of layers see their inputs in Q8_0, and the output matrix, which is in 16 bits, in
    float16."""
    import torch

    def eight_bits(module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        blocks = arguments[0].unflatten(-1, (-1, BLOCK))
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        steps = torch.where(scale > 0, blocks / scale, blocks).round()
        return ((steps * scale.half().float()).flatten(-2),)

    def half(module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (arguments[0].half().float(),)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(half if name == "lm_head" else eight_bits)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """The error's size relative to how much the logits differ among themselves."""
    spread = expected - expected.mean(-1, keepdims=True)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(spread))
