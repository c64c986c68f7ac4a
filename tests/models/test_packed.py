"""Quantized checkpoints, seen as dense ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import float8
from models.checkpoint import SafetensorsCheckpoint, open_checkpoint
from models.errors import BrokenModelFile, UnsupportedModel
from models.int8_matrix import Int8Matrix
from models.packed import PackedCheckpoint
from models.quantized_matrix import QuantizedMatrix
from quantize.formats import awq, compressed_tensors, gptq
from quantize.formats.compressed_tensors import Scheme
from quantize.formats.safetensors import Tensor, write_file

PLAIN = {"model.norm.weight": Tensor(np.arange(4, dtype=np.float16))}


def matrix(*, bits: int = 4, symmetric: bool = False, shuffled: bool = False) -> QuantizedMatrix:
    """32 outputs, 96 inputs in groups of 32."""
    random = np.random.default_rng(bits)
    zeros = random.integers(1, 2**bits, (32, 3), dtype=np.uint8)
    return QuantizedMatrix(
        bits=bits,
        integers=random.integers(0, 2**bits, (32, 96), dtype=np.uint8),
        scales=(random.random((32, 3)) + 0.1).astype(np.float16),
        zeros=np.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros,
        group_size=32,
        groups=random.permutation(np.arange(96) // 32).astype(np.int32) if shuffled else None,
    )


def folder(path: Path, tensors: dict[str, Tensor], settings: dict[str, Any] | None, **more: Any) -> Path:
    """A checkpoint's folder."""
    path.mkdir(exist_ok=True)
    config = {} if settings is None else {"quantization_config": settings}
    (path / "config.json").write_text(json.dumps({**config, **more}))
    write_file(path / "model.safetensors", PLAIN | tensors)
    return path


def gptq_config(**changes: Any) -> dict[str, Any]:
    """Of groups of 32."""
    return {**gptq.config(bits=4, group_size=32, symmetric=False), **changes}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq(tmp_path: Path, bits: int, shuffled: bool) -> None:
    source = matrix(bits=bits, shuffled=shuffled)
    bias = {"a.b.bias": Tensor(np.ones(32, np.float16))}
    where = folder(tmp_path, gptq.layer_tensors("a.b", source) | bias, gptq_config())
    with open_checkpoint(where) as checkpoint:
        assert isinstance(checkpoint, PackedCheckpoint)
        assert set(checkpoint.tensors) == {"a.b.weight", "a.b.bias", "model.norm.weight"}
        seen = checkpoint.tensors["a.b.weight"]
        assert (seen.shape, seen.dtype) == ((32, 96), "F32")
        assert seen.n_bytes == sum(t.array.nbytes for t in gptq.layer_tensors("a.b", source).values())
        np.testing.assert_array_equal(checkpoint.rows("a.b.weight"), source.dense())
        np.testing.assert_array_equal(checkpoint.rows("a.b.weight", 5, 9), source.dense()[5:9])
        np.testing.assert_array_equal(checkpoint.stored_rows("a.b.weight", 31), source.dense()[31:])
        assert checkpoint.rows("model.norm.weight").tolist() == [[0, 1, 2, 3]]
        assert checkpoint.rows("a.b.bias").tolist() == [[1] * 32]
        back = checkpoint.matrix("a.b.weight")
        assert isinstance(back, QuantizedMatrix)
        np.testing.assert_array_equal(back.integers, source.integers)
        assert checkpoint.matrix("model.norm.weight") is None
        with pytest.raises(ValueError, match="which has 32"):
            checkpoint.rows("a.b.weight", 0, 33)


def renamed(settings: dict[str, Any], form: str) -> dict[str, Any]:
    """With the format under GPTQModel's own key alone."""
    return {key: value for key, value in settings.items() if key != "checkpoint_format"} | {"format": form}


def test_other_ways_to_say_it(tmp_path: Path) -> None:
    """Format 2; a file of its own, as AutoGPTQ and AutoAWQ once wrote; a module with other groups."""
    source = matrix()
    second = gptq.layer_tensors("m", source, gptq.CheckpointFormat.V2)
    cases: dict[str, tuple[dict[str, Tensor], dict[str, Any] | None, dict[str, Any]]] = {
        "v2": (second, gptq_config(checkpoint_format="gptq_v2"), {}),
        "alone": (
            gptq.layer_tensors("m", source),
            None,
            {"quantize_config.json": {"bits": 4, "group_size": 32}},
        ),
        "as GPTQModel names it": (second, renamed(gptq_config(), "gptq_v2"), {}),
        "no g_idx": (without("m.g_idx"), gptq_config(), {}),
        "other groups": (gptq.layer_tensors("m", source), gptq_config(group_size=16), {}),
        "awq": (awq.layer_tensors("m", source), awq.config(group_size=32), {}),
        "old awq": (
            awq.layer_tensors("m", source),
            None,
            {"quant_config.json": awq.old_config(group_size=32)},
        ),
    }
    for name, (tensors, settings, files) in cases.items():
        where = folder(tmp_path / name, tensors, settings)
        for file, content in files.items():
            (where / file).write_text(json.dumps(content))
        with open_checkpoint(where) as checkpoint:
            np.testing.assert_array_equal(checkpoint.rows("m.weight"), source.dense(), err_msg=name)


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_int8(tmp_path: Path, scheme: Scheme, dtype: str) -> None:
    integers = np.random.default_rng(1).integers(-128, 128, (32, 96)).astype(np.int8)
    source = Int8Matrix(integers, np.arange(1, 33, dtype=np.float32).reshape(32, 1) / 16)
    tensors = compressed_tensors.layer_tensors("m", source, scheme, dtype)
    with open_checkpoint(folder(tmp_path, tensors, compressed_tensors.config(scheme))) as checkpoint:
        np.testing.assert_array_equal(checkpoint.rows("m.weight"), source.dense())
        assert set(checkpoint.tensors) == {"m.weight", "model.norm.weight"}
        scales = {"m.input_scale": Tensor(np.ones(1, np.float32))}
    with open_checkpoint(folder(tmp_path, tensors | scales, compressed_tensors.config(scheme))) as checkpoint:
        assert set(checkpoint.tensors) == {"m.weight", "model.norm.weight"}


E4M3 = {0x00: 0.0, 0x01: 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x3C: 1.5, 0x7E: 448.0, 0xB8: -1.0, 0x80: -0.0}
E5M2 = {0x00: 0.0, 0x01: 2.0**-16, 0x3C: 1.0, 0x3E: 1.5, 0x7B: 57344.0, 0x7C: np.inf, 0xBC: -1.0}


def test_float8_by_hand() -> None:
    for dtype, known in (("F8_E4M3", E4M3), ("F8_E5M2", E5M2)):
        raw = np.array(list(known), np.uint8)
        assert float8.to_float32(raw, dtype).tolist() == list(known.values())
    assert np.isnan(float8.to_float32(np.array([0x7F, 0xFF], np.uint8), "F8_E4M3")).all()


@pytest.mark.oracle
def test_float8_as_torch_reads_it() -> None:
    import torch

    raw = torch.arange(256, dtype=torch.uint8)
    for dtype, kind in (("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)):
        np.testing.assert_array_equal(float8.to_float32(raw.numpy(), dtype), raw.view(kind).float().numpy())


@pytest.mark.parametrize("scale", ["none", "one", "row", "column", "block"])
def test_float8(tmp_path: Path, scale: str) -> None:
    raw = np.random.default_rng(2).integers(0, 0x7F, (300, 260), dtype=np.uint8)
    values = float8.to_float32(raw, "F8_E4M3").astype(np.float64)
    random = np.random.default_rng(3)
    scales = {
        "none": None,
        "one": random.random(()),
        "row": random.random((300,)),
        "column": random.random((300, 1)),
        "block": random.random((3, 3)),
    }[scale]
    tensors = {"m.weight": Tensor(raw, "F8_E4M3")}
    if scales is not None:
        stored = np.asarray(scales, np.float32)
        tensors["m.weight_scale_inv" if scale == "block" else "m.weight_scale"] = Tensor(stored)
        wide = stored.reshape(-1, 1) if stored.ndim < 2 else stored
        if scale == "block":
            wide = np.repeat(np.repeat(stored, 128, 0), 128, 1)[:300, :260]
        values *= wide
    settings = None if scale == "none" else {"quant_method": "fp8", "weight_block_size": [128, 128]}
    with open_checkpoint(folder(tmp_path, tensors, settings)) as checkpoint:
        np.testing.assert_allclose(checkpoint.rows("m.weight"), values, rtol=1e-6)
        np.testing.assert_allclose(checkpoint.rows("m.weight", 120, 270), values[120:270], rtol=1e-6)
        assert checkpoint.matrix("m.weight") is None
        assert set(checkpoint.tensors) == {"m.weight", "model.norm.weight"}


def without(name: str) -> dict[str, Tensor]:
    """A GPTQ matrix that lacks a part."""
    return {key: tensor for key, tensor in gptq.layer_tensors("m", matrix()).items() if key != name}


def changed(**arrays: np.ndarray) -> dict[str, Tensor]:
    """A GPTQ matrix with other parts."""
    return gptq.layer_tensors("m", matrix()) | {f"m.{key}": Tensor(array) for key, array in arrays.items()}


BROKEN = {
    "no zero points": (without("m.qzeros"), "m has qweight but no qzeros"),
    "groups out of range": (changed(g_idx=np.full(96, 3, np.int32)), "outside of 3"),
    "negative groups": (changed(g_idx=np.full(96, -1, np.int32)), "outside of 3"),
    "short words": (changed(qweight=np.zeros((11, 32), np.int32)), "11 words for 96 inputs"),
    "few outputs": (changed(qweight=np.zeros((12, 24), np.int32)), r"qweight is \[12, 24\]"),
    "few zero points": (changed(qzeros=np.zeros((2, 4), np.int32)), r"qzeros is \[2, 4\]"),
    "scales of no groups": (changed(scales=np.zeros((0, 32), np.float16)), "damaged"),
    "a flat scale": (changed(scales=np.zeros(32, np.float16)), "impossible shapes"),
    "scales not finite": (changed(scales=np.full((3, 32), np.inf, np.float16)), "NaN or infinity"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damage_is_named(tmp_path: Path, case: str) -> None:
    tensors, message = BROKEN[case]
    where = folder(tmp_path, tensors, gptq_config())

    def read() -> None:
        with open_checkpoint(where) as checkpoint:
            checkpoint.rows("m.weight")

    with pytest.raises(BrokenModelFile, match=message):
        read()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, r"quantized already \(bitsandbytes\)"),
        ({"bits": 4}, r"quantized already \(\?\)"),
        (gptq_config(checkpoint_format="marlin"), "checkpoint_format marlin"),
        (gptq_config(is_marlin_format=True), "Marlin"),
        ({**awq.config(group_size=32), "version": "gemv"}, "version gemv"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv_fast"}, "version gemv_fast"),
        (renamed(gptq_config(), "gptq_p"), "checkpoint_format gptq_p"),
        (gptq_config(pack_dtype="int16"), "pack_dtype int16"),
        (gptq_config(group_size=0), "group_size 0"),
        ({**compressed_tensors.config(Scheme.W8A8), "format": "marlin-24"}, "format marlin-24"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mixed-precision",
                "config_groups": {"group_0": {"format": "nvfp4-pack-quantized"}},
            },
            "format nvfp4-pack-quantized",
        ),
        (gptq_config(group_size="128"), "group_size '128'"),
    ],
)
def test_what_is_not_read_here(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    where = folder(tmp_path, gptq.layer_tensors("m", matrix()), settings)
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(where)


def test_dense_checkpoints_stay_as_they_are(tmp_path: Path) -> None:
    with open_checkpoint(folder(tmp_path, {}, None)) as checkpoint:
        assert type(checkpoint) is SafetensorsCheckpoint
