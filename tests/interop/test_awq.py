"""AWQ results in transformers (GPTQModel) and in GPTQModel itself, on the CPU."""

from pathlib import Path

import pytest
import torch

from tests.interop.cases import AWQ
from tests.interop.reference import matrices
from tests.interop.test_gptq import check_logits, check_product_of_integers


@pytest.mark.parametrize("name", AWQ)
def test_transformers_has_our_weights(results: Path, name: str) -> None:
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
    from transformers import AutoModelForCausalLM, AwqConfig

    folder = results / name
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float16,
        device_map="cpu",
        quantization_config=AwqConfig(bits=4, backend="torch_awq"),
    ).eval()
    modules = dict(model.named_modules())
    for module, expected in matrices(folder).items():
        one = modules[module]
        found = dequantize_gemm(
            qweight=one.qweight, qzeros=one.qzeros, scales=one.scales, bits=4, group_size=one.group_size
        ).T
        torch.testing.assert_close(found, expected.half(), rtol=0, atol=0, msg=f"{name}: {module}")
    check_logits(model, folder)


@pytest.mark.parametrize("name", ["smollm2-awq"])
def test_the_kernel_that_transformers_chooses(results: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = results / name
    check_logits(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu").eval(), folder
    )


@pytest.mark.parametrize("name", ["awq-g128", "qwen2-awq"])
def test_the_kernel_that_transformers_chooses_in_bfloat16(results: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = results / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu").eval()
    check_product_of_integers(model, folder)


@pytest.mark.parametrize("name", ["smollm2-awq", "qwen2-awq"])
def test_gptqmodel_itself(results: Path, name: str) -> None:
    from gptqmodel import BACKEND, GPTQModel

    folder = results / name
    model = GPTQModel.load(str(folder), backend=BACKEND.AWQ_TORCH, device="cpu", dtype=torch.float16)
    check_logits(model.model, folder)
