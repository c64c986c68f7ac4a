"""GPTQ, AWQ and INT8 as GGUF blocks, decoded by the gguf package."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from models.errors import UnsupportedModel
from models.ggml_types import GGMLType
from models.int8_matrix import Int8Matrix
from models.quantized_matrix import QuantizedMatrix
from quantize.formats.repack import blocks, fit, interleaved, kind_of
from quantize.tensors import interleave


def matrix(*, bits: int = 4, size: int = 64, symmetric: bool = True, digits: int = 7) -> QuantizedMatrix:
    """Random integers; scales of so many significant digits."""
    random = np.random.default_rng(bits + size)
    n, k = 16, 256
    scales = random.integers(1 << (digits - 1), 1 << digits, (n, k // size)) * 2.0 ** -(digits + 5)
    scales *= random.choice([-1, 1], scales.shape) if symmetric else 1
    zeros = random.integers(1, 2**bits, scales.shape, dtype=np.uint8)
    return QuantizedMatrix(
        bits=bits,
        integers=random.integers(0, 2**bits, (n, k), dtype=np.uint8),
        scales=scales.astype(np.float16),
        zeros=np.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros,
        group_size=size,
    )


def decoded(raw: np.ndarray, kind: GGMLType) -> np.ndarray:
    """As the gguf package understands it."""
    return np.asarray(dequantize(raw, GGMLQuantizationType(int(kind))))


@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_groups_are_exact(bits: int, size: int) -> None:
    source = matrix(bits=bits, size=size, digits=11)
    kind = kind_of("m", source)
    assert kind is (GGMLType.Q8_0 if bits == 8 else GGMLType.Q4_0)
    np.testing.assert_array_equal(decoded(blocks(source, kind), kind), source.dense())
    assert fit([(source, kind)]).note == ""
    if bits < 8:
        np.testing.assert_array_equal(decoded(blocks(source, GGMLType.Q4_1), GGMLType.Q4_1), source.dense())


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_asymmetric_groups_of_ours_are_exact(bits: int, size: int) -> None:
    source = matrix(bits=bits, size=size, symmetric=False)
    assert kind_of("m", source) is GGMLType.Q4_1
    np.testing.assert_array_equal(decoded(blocks(source, GGMLType.Q4_1), GGMLType.Q4_1), source.dense())
    assert fit([(source, GGMLType.Q4_1)]).inexact == 0


def test_foreign_scales_cost_one_rounding_and_it_is_told() -> None:
    source = matrix(symmetric=False, digits=11)
    got = decoded(blocks(source, GGMLType.Q4_1), GGMLType.Q4_1)
    offsets = np.repeat(source.scales.astype(np.float32) * source.zeros, 64, axis=1)
    error = np.abs(got - source.dense())
    assert error.max() > 0
    assert (error <= offsets * 2.0**-11).all()
    found = fit([(source, GGMLType.Q4_1)])
    assert found.total == 2 * source.scales.size
    assert 0 < found.inexact <= source.scales.size
    assert found.note.startswith(f"{found.inexact} of {found.total} scales and offsets were rounded")


def test_a_block_by_hand() -> None:
    integers = np.array([[k % 16 for k in range(32)]], np.uint8)
    source = QuantizedMatrix(4, integers, np.array([[0.5]], np.float16), np.array([[8]], np.uint8), 32)
    nibbles = bytes(0x11 * k for k in range(16))
    assert blocks(source, GGMLType.Q4_0).tobytes() == b"\x00\x38" + nibbles
    shifted = QuantizedMatrix(4, integers, source.scales, np.array([[3]], np.uint8), 32)
    assert blocks(shifted, GGMLType.Q4_1).tobytes() == b"\x00\x38\x00\xbe" + nibbles  # 0.5, -1.5


def test_int8_becomes_q8_0() -> None:
    random = np.random.default_rng(8)
    integers = random.integers(-128, 128, (8, 64)).astype(np.int8)
    source = Int8Matrix(integers, (random.integers(1, 2048, (8, 1)) / 2.0**12).astype(np.float32))
    assert kind_of("m", source) is GGMLType.Q8_0
    np.testing.assert_array_equal(decoded(blocks(source, GGMLType.Q8_0), GGMLType.Q8_0), source.dense())
    third = Int8Matrix(integers, np.full((8, 1), 1 / 3, np.float32))
    assert fit([(third, GGMLType.Q8_0)]).inexact == 8


def test_rows_of_heads_are_interleaved_like_dense_ones() -> None:
    for source in (
        matrix(symmetric=False),
        Int8Matrix(np.ones((16, 64), np.int8), np.arange(16.0, dtype=np.float32).reshape(16, 1)),
    ):
        np.testing.assert_array_equal(interleaved(source, 2).dense(), interleave(source.dense(), 2))


def test_what_has_no_block_is_refused() -> None:
    source = matrix()
    shuffled = np.random.default_rng(1).permutation(source.sequential_groups())
    classic = QuantizedMatrix(4, source.integers, source.scales, source.zeros, 64, shuffled)
    with pytest.raises(UnsupportedModel, match="desc_act"):
        kind_of("m", classic)
    with pytest.raises(UnsupportedModel, match="eight bits and a zero point"):
        kind_of("m", matrix(bits=8, symmetric=False))
    odd = QuantizedMatrix(4, source.integers[:, :48], source.scales[:, :3], source.zeros[:, :3], 16)
    with pytest.raises(UnsupportedModel, match="48 inputs"):
        kind_of("m", odd)
    small = QuantizedMatrix(4, source.integers[:, :64], source.scales[:, :4], source.zeros[:, :4], 16)
    with pytest.raises(UnsupportedModel, match="groups of 16"):
        kind_of("m", small)
    huge = Int8Matrix(np.ones((1, 32), np.int8), np.array([[1e6]], np.float32))
    with pytest.raises(UnsupportedModel, match="65504"):
        blocks(huge, GGMLType.Q8_0)
