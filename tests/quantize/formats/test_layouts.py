"""The checkpoints' layouts: words written out by hand, and readers' arithmetic value by value."""

import json
from pathlib import Path

import numpy as np
import pytest

from models.int8_matrix import Int8Matrix
from models.packed_layouts import awq as read_awq
from models.packed_layouts import gptq as read_gptq
from models.packed_layouts import int_quantized, pack_quantized
from models.quantized_matrix import QuantizedMatrix
from models.safetensors import read_header
from quantize.errors import BadRequest
from quantize.formats import awq, compressed_tensors, gptq, safetensors
from quantize.formats.compressed_tensors import Scheme
from quantize.formats.gptq import CheckpointFormat
from quantize.formats.safetensors import Tensor
from tests.oracles.packing import awq_weight, gptq_weight


def unsigned(array: np.ndarray) -> list[int]:
    """Words as they are written out in these tests."""
    return [int(word) for word in array.reshape(-1).view(np.uint32)]


def arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """By the last part of their names."""
    return {name.rpartition(".")[2]: tensor.array for name, tensor in tensors.items()}


def random_matrix(
    n: int = 64, k: int = 128, *, bits: int = 4, size: int = 32, shuffled: bool = False
) -> QuantizedMatrix:
    """Anything that the layouts can hold."""
    random = np.random.default_rng(bits * 1000 + size)
    groups = (np.arange(k) // size).astype(np.int32)
    return QuantizedMatrix(
        bits=bits,
        integers=random.integers(0, 2**bits, (n, k), dtype=np.uint8),
        scales=(random.random((n, k // size)) + 0.1).astype(np.float16),
        zeros=random.integers(1, 2**bits, (n, k // size), dtype=np.uint8),
        group_size=size,
        groups=random.permutation(groups) if shuffled else None,
    )


def by_hand() -> QuantizedMatrix:
    """8 outputs, 8 inputs, one group: row n holds n, n+1, ... modulo 16."""
    integers = np.array([[(n + k) % 16 for k in range(8)] for n in range(8)], np.uint8)
    scales = np.arange(1, 9, dtype=np.float16).reshape(8, 1) / 4
    zeros = np.array([[8], [7], [6], [5], [4], [3], [2], [1]], np.uint8)
    return QuantizedMatrix(4, integers, scales, zeros, 8)


def test_gptq_by_hand() -> None:
    tensors = gptq.layer_tensors("a.b", by_hand())
    assert list(tensors) == ["a.b.qweight", "a.b.qzeros", "a.b.scales", "a.b.g_idx"]
    assert unsigned(tensors["a.b.qweight"].array) == [
        0x76543210, 0x87654321, 0x98765432, 0xA9876543, 0xBA987654, 0xCBA98765, 0xDCBA9876, 0xEDCBA987,
    ]  # fmt: skip
    assert tensors["a.b.qweight"].array.shape == (1, 8)
    assert unsigned(tensors["a.b.qzeros"].array) == [0x01234567]  # less one
    assert tensors["a.b.scales"].array.tolist() == [[0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]]
    assert tensors["a.b.g_idx"].array.tolist() == [0] * 8
    second = gptq.layer_tensors("a.b", by_hand(), CheckpointFormat.V2)
    assert unsigned(second["a.b.qzeros"].array) == [0x12345678]
    assert {tensor.stored_dtype for tensor in tensors.values()} == {"I32", "F16"}


def test_symmetric_gptq_has_sevens() -> None:
    """What AutoGPTQ writes for a zero point of 8."""
    zeros = np.full((8, 1), 8, np.uint8)
    matrix = QuantizedMatrix(4, by_hand().integers, by_hand().scales, zeros, 8)
    assert unsigned(gptq.layer_tensors("x", matrix)["x.qzeros"].array) == [0x77777777]
    assert unsigned(gptq.layer_tensors("x", matrix, CheckpointFormat.V2)["x.qzeros"].array) == [0x88888888]


def test_awq_by_hand() -> None:
    tensors = awq.layer_tensors("a.b", by_hand())
    assert list(tensors) == ["a.b.qweight", "a.b.qzeros", "a.b.scales"]
    # Row k holds column k of the weights: k, k+1, ..., k+7; from the low end outputs 0 2 4 6 1 3 5 7.
    assert unsigned(tensors["a.b.qweight"].array) == [
        0x75316420, 0x86427531, 0x97538642, 0xA8649753, 0xB975A864, 0xCA86B975, 0xDB97CA86, 0xECA8DB97,
    ]  # fmt: skip
    assert tensors["a.b.qweight"].array.shape == (8, 1)
    assert unsigned(tensors["a.b.qzeros"].array) == [0x13572468]
    assert tensors["a.b.scales"].array.shape == (1, 8)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("layout", list(CheckpointFormat))
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq_both_ways(bits: int, layout: CheckpointFormat, shuffled: bool) -> None:
    matrix = random_matrix(32, 64, bits=bits, shuffled=shuffled)
    tensors = gptq.layer_tensors("m", matrix, layout)
    v1 = layout is CheckpointFormat.V1
    raw = {name: tensor.array for name, tensor in tensors.items()}
    expected = gptq_weight(raw, "m", bits, stored_less_one=v1)
    np.testing.assert_array_equal(matrix.dense().astype(np.float64), expected)
    back = read_gptq(arrays(tensors), zeros_less_one=v1, group_size=32)
    np.testing.assert_array_equal(back.integers, matrix.integers)
    np.testing.assert_array_equal(back.zeros, matrix.zeros)
    np.testing.assert_array_equal(back.dense(), matrix.dense())
    assert back.bits == bits
    assert (back.groups is not None) == shuffled


def test_awq_both_ways() -> None:
    matrix = random_matrix(32, 64)
    tensors = awq.layer_tensors("m", matrix)
    expected = awq_weight({name: tensor.array for name, tensor in tensors.items()}, "m", 32)
    np.testing.assert_array_equal(matrix.dense().astype(np.float64), expected)
    back = read_awq(arrays(tensors))
    np.testing.assert_array_equal(back.dense(), matrix.dense())
    np.testing.assert_array_equal(back.integers, matrix.integers)


def test_a_borrowed_zero_point_is_read_as_gptqmodel_wrote_it() -> None:
    """It subtracts 0x11111111 from whole words, so that a zero point of 0 takes from its neighbour."""
    matrix = random_matrix()
    zeros = matrix.zeros.copy()
    zeros[3] = 0
    matrix = QuantizedMatrix(4, matrix.integers, matrix.scales, zeros, 32)
    raw = arrays(gptq.layer_tensors("m", matrix, CheckpointFormat.V2))
    raw["qzeros"] = (raw["qzeros"].view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    back = read_gptq(raw, zeros_less_one=True, group_size=32)
    np.testing.assert_array_equal(back.dense(), matrix.dense())
    with pytest.raises(ValueError, match="zero point of 0"):
        gptq.layer_tensors("m", matrix)


def test_int8_by_hand_both_ways() -> None:
    integers = np.array([[-128, -1, 0, 127], [1, 2, 3, 4]], np.int8)
    matrix = Int8Matrix(integers, np.array([[0.5], [0.25]], np.float32))
    bytes_ = compressed_tensors.layer_tensors("m", matrix, Scheme.W8A8, "BF16")
    assert {name: (t.stored_dtype, t.array.shape) for name, t in bytes_.items()} == {
        "m.weight": ("I8", (2, 4)),
        "m.weight_scale": ("BF16", (2, 1)),
    }
    assert bytes_["m.weight_scale"].array.tolist() == [[0x3F00], [0x3E80]]
    packed = compressed_tensors.layer_tensors("m", matrix, Scheme.W8A16, "F16")
    assert unsigned(packed["m.weight_packed"].array) == [0xFF807F00, 0x84838281]  # value + 128
    assert packed["m.weight_shape"].array.tolist() == [2, 4]
    assert packed["m.weight_shape"].stored_dtype == "I64"
    assert packed["m.weight_scale"].array.tolist() == [[0.5], [0.25]]
    expected = np.array([[-64, -0.5, 0, 63.5], [0.25, 0.5, 0.75, 1]], np.float32)
    np.testing.assert_array_equal(pack_quantized(arrays(packed)).dense(), expected)
    raw = {"weight": integers, "weight_scale": matrix.scales}
    np.testing.assert_array_equal(int_quantized(raw).dense(), expected)


@pytest.mark.parametrize("bits", [3, 4])
def test_packed_integers_with_zero_points_are_read(bits: int) -> None:
    """compressed-tensors packs zero points along the outputs."""
    from models.packing import pack

    matrix = random_matrix(32, 64, bits=bits)
    raw = {
        "weight_packed": pack(matrix.integers, bits),
        "weight_scale": matrix.scales,
        "weight_shape": np.array([32, 64]),
        "weight_zero_point": pack(np.ascontiguousarray(matrix.zeros.T), bits).T,
    }
    np.testing.assert_array_equal(pack_quantized(raw).dense(), matrix.dense())


def test_what_fills_no_words_is_refused() -> None:
    with pytest.raises(BadRequest, match="20 outputs: 4 bits pack 8"):
        gptq.check_shape("m", 20, 64, 4)
    with pytest.raises(BadRequest, match="48 inputs: 3 bits pack 32"):
        gptq.check_shape("m", 64, 48, 3)
    with pytest.raises(BadRequest, match="12 outputs"):
        awq.check_shape("m", 12, 64, 32)
    with pytest.raises(BadRequest, match="group size 128"):
        awq.check_shape("m", 16, 576, 128)
    matrix = Int8Matrix(np.zeros((2, 6), np.int8), np.ones((2, 1), np.float32))
    with pytest.raises(BadRequest, match="6 inputs"):
        compressed_tensors.layer_tensors("m", matrix, Scheme.W8A16, "F32")


def test_configurations_name_what_readers_ask_for() -> None:
    found = gptq.config(bits=4, group_size=64, symmetric=True, quantizer="edgechat:0.1")
    assert {"bits": 4, "group_size": 64, "sym": True, "desc_act": False}.items() <= found.items()
    assert (found["quant_method"], found["checkpoint_format"]) == ("gptq", "gptq")
    assert awq.config(group_size=64)["version"] == "gemm"
    # AutoAWQ passes these on as arguments: none of another name may be there.
    assert awq.old_config(group_size=64, not_converted=["lm_head", "mlp.gate"]) == {
        "zero_point": True,
        "q_group_size": 64,
        "w_bit": 4,
        "version": "GEMM",
        "modules_to_not_convert": ["lm_head", "mlp.gate"],
    }
    both = compressed_tensors.config(Scheme.W8A8)
    assert both["format"] == "int-quantized"
    assert both["config_groups"]["group_0"]["input_activations"]["strategy"] == "token"
    alone = compressed_tensors.config(Scheme.W8A16)
    assert alone["format"] == "pack-quantized"
    assert alone["config_groups"]["group_0"]["input_activations"] is None
    mixed = compressed_tensors.config(Scheme.W8A8, kept=["model.layers.3.mlp.down_proj"])
    assert mixed["format"] == "mixed-precision"
    assert mixed["config_groups"] == {
        "group_0": both["config_groups"]["group_0"],
        "group_1": alone["config_groups"]["group_0"] | {"targets": ["model.layers.3.mlp.down_proj"]},
    }


def test_files_are_read_back(tmp_path: Path) -> None:
    first = {
        "a": Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "b": Tensor(np.array([1], np.uint16), "BF16"),
    }
    second = {"c": Tensor(np.array(3, np.int64)), "d": Tensor(np.zeros((0, 4), np.float16))}
    safetensors.write_file(tmp_path / "1", first)
    safetensors.write_file(tmp_path / "2", second)
    safetensors.join([tmp_path / "1", tmp_path / "2"], tmp_path / "model.safetensors")
    header = read_header(tmp_path / "model.safetensors")
    assert {name: (e.dtype, e.shape) for name, e in header.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (1,)),
        "c": ("I64", ()),
        "d": ("F16", (0, 4)),
    }
    raw = (tmp_path / "model.safetensors").read_bytes()
    assert raw[header["a"].offset :][:24] == np.arange(6, dtype="<f4").tobytes()
    with pytest.raises(ValueError, match="more than one"):
        safetensors.join([tmp_path / "1", tmp_path / "1"], tmp_path / "x")
    safetensors.write_index(tmp_path, ["1", "2"])
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a": "1", "b": "1", "c": "2", "d": "2"}
    assert index["metadata"]["total_size"] == 24 + 2 + 8


@pytest.mark.oracle
def test_the_library_reads_our_files(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    tensors = gptq.layer_tensors("m", random_matrix())
    safetensors.write_file(tmp_path / "m.safetensors", tensors)
    loaded = load_file(tmp_path / "m.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(loaded[name], tensor.array)
