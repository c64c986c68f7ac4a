"""Whole conversions of quantized checkpoints: what is in the GGUF file is what was in the checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from models.errors import UnsupportedModel
from models.int8_matrix import Int8Matrix
from models.quantized_matrix import QuantizedMatrix
from quantize.formats import awq, compressed_tensors, gptq
from quantize.formats.compressed_tensors import Scheme
from quantize.formats.safetensors import Tensor, write_file
from quantize.pipeline import Request, Result, default_target, run
from quantize.plan import target_of
from quantize.remarks import AGAIN
from quantize.tensors import interleave
from tests.oracles import raw_checkpoint

Make = Callable[[str, int, int], tuple[dict[str, Tensor], np.ndarray]]
"""Of a module's name and shape: its tensors, and its weights."""


def random_matrix(
    n: int, k: int, *, symmetric: bool, shuffled: bool = False, digits: int = 7
) -> QuantizedMatrix:
    """Groups of 32; scales of so many significant digits."""
    random = np.random.default_rng(n * k)
    zeros = random.integers(1, 16, (n, k // 32), dtype=np.uint8)
    scales = random.integers(1 << (digits - 1), 1 << digits, zeros.shape) * 2.0 ** -(digits + 6)
    return QuantizedMatrix(
        bits=4,
        integers=random.integers(0, 16, (n, k), dtype=np.uint8),
        scales=scales.astype(np.float16),
        zeros=np.full_like(zeros, 8) if symmetric else zeros,
        group_size=32,
        groups=random.permutation(np.arange(k) // 32).astype(np.int32) if shuffled else None,
    )


def as_gptq(**options: Any) -> Make:
    """Matrices in AutoGPTQ's layout."""

    def make(name: str, n: int, k: int) -> tuple[dict[str, Tensor], np.ndarray]:
        matrix = random_matrix(n, k, **options)
        return gptq.layer_tensors(name, matrix), matrix.dense()

    return make


def as_awq(name: str, n: int, k: int) -> tuple[dict[str, Tensor], np.ndarray]:
    """Matrices in AutoAWQ's layout."""
    matrix = random_matrix(n, k, symmetric=False)
    return awq.layer_tensors(name, matrix), matrix.dense()


def as_int8(name: str, n: int, k: int) -> tuple[dict[str, Tensor], np.ndarray]:
    """Matrices of bytes, with scales that float16 holds."""
    random = np.random.default_rng(n * k)
    integers = random.integers(-127, 128, (n, k)).astype(np.int8)
    matrix = Int8Matrix(integers, (random.integers(1, 256, (n, 1)) / 2.0**14).astype(np.float32))
    return compressed_tensors.layer_tensors(name, matrix, Scheme.W8A16, "BF16"), matrix.dense()


def checkpoint(folder: Path, make: Make, settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Write a small Llama with quantized matrices.

    Returns:
        Its weights, by name.
    """
    model = raw_checkpoint.config(quantization_config=settings)
    raw_checkpoint.write(folder, model=model)
    tensors: dict[str, Tensor] = {}
    weights: dict[str, np.ndarray] = {}
    for name, value in raw_checkpoint.weights().items():
        if name.endswith("_proj.weight"):
            made, weights[name] = make(name.removesuffix(".weight"), *value.shape)
            tensors |= made
        else:
            tensors[name] = Tensor(value.astype(np.float16))
            weights[name] = value.astype(np.float16).astype(np.float32)
    write_file(folder / "model.safetensors", tensors)
    return weights


def converted(folder: Path, kind: str | None = None) -> tuple[Result, dict[str, tuple[str, np.ndarray]]]:
    """Convert it, and read the result with the gguf package: the type and the weights of each tensor."""
    target = default_target(folder) if kind is None else target_of(kind)
    result = run(Request(folder, target, folder.parent, force=True))
    reader = GGUFReader(result.path)
    return result, {
        tensor.name: (tensor.tensor_type.name, np.asarray(dequantize(tensor.data, tensor.tensor_type)))
        for tensor in reader.tensors
    }


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEADS = {"attn_q": raw_checkpoint.HEADS, "attn_k": raw_checkpoint.KV_HEADS}

GPTQ = gptq.config(bits=4, group_size=32, symmetric=True)
CASES: dict[str, tuple[Make, dict[str, Any], str]] = {
    "gptq": (as_gptq(symmetric=True, digits=11), GPTQ, "Q4_0"),
    "asymmetric gptq": (as_gptq(symmetric=False), {**GPTQ, "sym": False}, "Q4_1"),
    "awq": (as_awq, awq.config(group_size=32), "Q4_1"),
    "int8": (as_int8, compressed_tensors.config(Scheme.W8A16), "Q8_0"),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_equal(tmp_path: Path, case: str) -> None:
    make, settings, kind = CASES[case]
    weights = checkpoint(tmp_path / "model", make, settings)
    result, tensors = converted(tmp_path / "model")
    assert result.type == kind
    assert result.path.name == f"model-{kind}.gguf"
    assert not any("rounded" in note or note == AGAIN for note in result.notes)
    for layer in range(raw_checkpoint.LAYERS):
        for theirs, ours in NAMES.items():
            expected = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours in HEADS:
                expected = interleave(expected, HEADS[ours])
            found, values = tensors[f"blk.{layer}.{ours}.weight"]
            assert found == kind
            np.testing.assert_array_equal(values, expected, err_msg=ours)
    found, values = tensors["token_embd.weight"]
    assert found == "F16"
    np.testing.assert_array_equal(values, weights["model.embed_tokens.weight"])


def test_foreign_offsets_are_rounded_once_and_it_is_told(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model", as_gptq(symmetric=False, digits=11), {**GPTQ, "sym": False})
    result, _ = converted(tmp_path / "model")
    assert any("scales and offsets were rounded to float16" in note for note in result.notes)


def test_symmetric_groups_as_q4_1_on_request(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "model", as_gptq(symmetric=True), GPTQ)
    result, tensors = converted(tmp_path / "model", "q4_1")
    found, values = tensors["blk.1.ffn_down.weight"]
    assert (result.type, found) == ("Q4_1", "Q4_1")
    np.testing.assert_array_equal(values, weights["model.layers.1.mlp.down_proj.weight"])


@pytest.mark.parametrize("kind", ["f32", "q8_0", "q5_0"])
def test_other_types_round_again_and_it_is_told(tmp_path: Path, kind: str) -> None:
    weights = checkpoint(tmp_path / "model", as_gptq(symmetric=True), GPTQ)
    result, tensors = converted(tmp_path / "model", kind)
    assert (AGAIN in result.notes) == (kind != "f32")
    _, values = tensors["blk.0.ffn_up.weight"]
    tolerance = {"f32": 0, "q8_0": 0.003, "q5_0": 0.04}[kind]
    np.testing.assert_allclose(values, weights["model.layers.0.mlp.up_proj.weight"], rtol=0, atol=tolerance)


def test_an_order_of_its_own_is_refused_clearly(tmp_path: Path) -> None:
    weights = checkpoint(
        tmp_path / "model", as_gptq(symmetric=True, shuffled=True), {**GPTQ, "desc_act": True}
    )
    with pytest.raises(UnsupportedModel, match=r"desc_act.*give --type f16 or q8_0"):
        converted(tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="desc_act"):
        converted(tmp_path / "model", "q4_0")
    _, tensors = converted(tmp_path / "model", "f32")
    np.testing.assert_array_equal(
        tensors["blk.0.ffn_up.weight"][1], weights["model.layers.0.mlp.up_proj.weight"]
    )
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".partial"]


def test_default_of_dense_checkpoints(tmp_path: Path) -> None:
    raw_checkpoint.write(tmp_path / "model")
    assert default_target(tmp_path / "model").name == "q4_k_m"
    assert default_target(tmp_path / "nothing").name == "q4_k_m"
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "quantization_config" not in settings
