"""GPTQ results in transformers (optimum, GPTQModel) and in GPTQModel itself, on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.cases import CASES, GPTQ
from tests.interop.reference import (
    FACTORS,
    dense,
    distance,
    has_negative_scales,
    logits,
    matrices,
    tokens,
)

SIGNED = [name for name in GPTQ if "--asym" not in CASES[name].options]
INT4_KERNEL = ["smollm2-gptq", "gptq-asym-v2"]
"""Which the kernel that readers choose by themselves on a CPU takes: four bits, groups of 32 to 256.
With inputs in float16 it unpacks the weights first."""
INT4_PRODUCT = ["gptq-g128", "gptq-asym-v2", "gptq-desc-act-v2", "qwen2-gptq"]
"""With inputs in bfloat16 it multiplies by the packed integers. Small models: rounding adds up least."""
ITS_OWN = ["smollm2-gptq", "gptq-desc-act-v2", "gptq-asym-v2", "gptq-3bit", "qwen2-gptq"]
"""GPTQModel's own loader takes asymmetric matrices of the first format from GPTQModel alone."""


def in_transformers(folder: Path, backend: str, dtype: torch.dtype = torch.float16) -> Any:
    """Loaded as a user would."""
    from transformers import AutoModelForCausalLM, GPTQConfig

    wish = GPTQConfig(
        bits=4, backend=backend
    )  # of a checkpoint's own settings only the backend is overridden
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, device_map="cpu", quantization_config=wish
    ).eval()


def check_logits(model: Any, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Against dense weights in float32, to the rounding of the type that the model computes in."""
    ids = tokens(folder)
    expected = logits(dense(folder), ids)
    allowed = FACTORS[dtype] * distance(logits(dense(folder, dtype), ids), expected)
    found = distance(logits(model, ids), expected)
    print(f"{folder.name}: {found:.2e} of {allowed:.2e}")
    assert found <= allowed
    assert allowed < 0.05


def check_product_of_integers(model: Any, folder: Path) -> None:
    """Logits in bfloat16, of a kernel that doesn't unpack the weights first."""
    check_logits(model, folder, torch.bfloat16)
    ways = {module.linear_mode for module in model.modules() if hasattr(module, "linear_mode")}
    assert ways == {"inference"}  # otherwise "train"


@pytest.mark.parametrize("name", GPTQ)
def test_transformers_has_our_weights(results: Path, name: str) -> None:
    folder = results / name
    model = in_transformers(folder, "gptq_torch")
    modules = dict(model.named_modules())
    for module, expected in matrices(folder).items():
        found = modules[module].dequantize_weight().T
        torch.testing.assert_close(found, expected.half(), rtol=0, atol=0, msg=f"{name}: {module}")
    check_logits(model, folder)


@pytest.mark.parametrize("name", SIGNED)
def test_symmetric_results_have_negative_scales(results: Path, name: str) -> None:
    """So that the other tests show how readers take them."""
    assert has_negative_scales(results / name)


@pytest.mark.parametrize("name", INT4_KERNEL)
def test_the_kernel_that_transformers_chooses(results: Path, name: str) -> None:
    folder = results / name
    model = in_transformers(folder, "auto")
    kinds = {type(module).__name__ for module in model.modules() if hasattr(module, "qweight")}
    assert len(kinds) == 1, kinds
    print(name, *kinds)
    check_logits(model, folder)


@pytest.mark.parametrize("name", INT4_PRODUCT)
def test_the_kernel_that_transformers_chooses_in_bfloat16(results: Path, name: str) -> None:
    folder = results / name
    check_product_of_integers(in_transformers(folder, "auto", torch.bfloat16), folder)


@pytest.mark.parametrize("name", ITS_OWN)
def test_gptqmodel_itself(results: Path, name: str) -> None:
    from gptqmodel import BACKEND, GPTQModel

    folder = results / name
    model = GPTQModel.load(str(folder), backend=BACKEND.GPTQ_TORCH, device="cpu", dtype=torch.float16)
    check_logits(model.model, folder)


@pytest.mark.parametrize("name", ["smollm2-gptq"])
def test_a_wrong_sign_would_be_noticed(results: Path, name: str) -> None:
    """The tolerance is far below what a reader would do that took the size of scales alone."""
    folder = results / name
    ids = tokens(folder)
    expected = logits(dense(folder), ids)
    allowed = FACTORS[torch.float16] * distance(logits(dense(folder, torch.float16), ids), expected)
    model = dense(folder)
    first = model.get_parameter("model.layers.0.mlp.up_proj.weight").data
    first[:, :64] *= -1
    assert distance(logits(model, ids), expected) > allowed
