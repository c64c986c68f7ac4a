"""INT8 results in transformers with compressed-tensors, on the CPU, in float32."""

from pathlib import Path

import pytest
import torch

from tests.interop.cases import CASES, INT8
from tests.interop.reference import (
    dense,
    distance,
    logits,
    matrices,
    rounded_inputs,
    tokens,
    with_rounded_inputs,
)

EXACT = 1e-4
"""What float32 makes of another order of sums."""
TIES = 0.02
"""Activations within a rounding error of the middle between two integers go either way."""


@pytest.mark.parametrize("name", INT8)
def test_transformers_has_our_weights(results: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = results / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu").eval()
    ids = tokens(folder)
    found = logits(model, ids)  # its first run decompresses the weights
    modules = dict(model.named_modules())
    expected = matrices(folder)
    for module, weight in expected.items():
        torch.testing.assert_close(modules[module].weight.data, weight, rtol=1e-6, atol=0)
    ours = dense(folder)
    far = logits(ours, ids)
    rounds = "w8a8" in CASES[name].options
    if rounds:
        rounded_inputs(ours, with_rounded_inputs(folder))
    near = logits(ours, ids)
    print(f"{name}: {distance(found, near):.2e}, without rounded inputs {distance(found, far):.2e}")
    assert distance(found, near) <= (TIES if rounds else EXACT)
    assert not rounds or distance(found, far) > EXACT  # it does round them
