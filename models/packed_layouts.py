"""How GPTQ, AWQ, compressed-tensors and FP8 checkpoints store a matrix, back to integers and scales.

The arrays come from strangers' files: what doesn't fit is refused by `LayoutError`, in words that a message
can end on. Layouts are described where they are written, in quantize/formats.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from models.int8_matrix import Int8Matrix
from models.packing import BITS, unpack, unpack_awq, values_per_period
from models.quantized_matrix import QuantizedMatrix

Arrays = Mapping[str, npt.NDArray[Any]]
"""A module's tensors by the last part of their names; floats as float16 or float32."""

Floats = npt.NDArray[np.float32]
Matrix = QuantizedMatrix | Int8Matrix


class LayoutError(ValueError):
    """The arrays don't make up a matrix."""


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise LayoutError(what)


def gptq(arrays: Arrays, *, zeros_less_one: bool, group_size: int) -> QuantizedMatrix:
    """AutoGPTQ's layout.

    Args:
        arrays: qweight, qzeros, scales and g_idx.
        zeros_less_one: of format "gptq"; False for "gptq_v2".
        group_size: as the configuration has it; -1 for whole rows.
    """
    qweight, qzeros, scales = arrays["qweight"], arrays["qzeros"], arrays["scales"]
    g_idx = arrays["g_idx"].reshape(-1).astype(np.int32)
    k, (n_groups, n) = len(g_idx), scales.shape
    bits = _bits(len(qweight), k)
    size = k if group_size == -1 else group_size
    if -(-k // size) != n_groups:  # some modules may differ from the rest
        _must(k % n_groups == 0, f"{n_groups} groups of {k} inputs")
        size = k // n_groups
    period = values_per_period(bits)
    _must(k % period == 0 and n % period == 0, f"[{n}, {k}] at {bits} bits")
    _must(qweight.shape == (k * bits // 32, n), f"qweight is {list(qweight.shape)} for [{n}, {k}]")
    _must(qzeros.shape == (n_groups, n * bits // 32), f"qzeros is {list(qzeros.shape)} for [{n}, {k}]")
    _must(bool(((g_idx >= 0) & (g_idx < n_groups)).all()), f"g_idx names groups outside of {n_groups}")
    matrix = QuantizedMatrix(
        bits=bits,
        integers=unpack(np.ascontiguousarray(qweight.T), bits),
        scales=np.ascontiguousarray(scales.T),
        zeros=np.ascontiguousarray(_zeros(qzeros, bits, less_one=zeros_less_one).T),
        group_size=size,
        groups=g_idx,
    )
    return matrix if not matrix.is_sequential else matrix.in_sequence()


def _bits(n_words: int, count: int) -> int:
    for bits in reversed(BITS):  # they differ from 32 inputs on; below, eight is likeliest
        if n_words == -(-count * bits // 32):
            return bits
    raise LayoutError(f"{n_words} words for {count} inputs are neither 2, 3, 4 nor 8 bits each")


def _zeros(words: npt.NDArray[np.int32], bits: int, *, less_one: bool) -> npt.NDArray[np.uint8]:
    if not less_one:
        return unpack(words, bits)
    if bits == 3:
        return unpack(words, bits) + np.uint8(1) & np.uint8(7)
    # The whole word at once, as GPTQModel writes them: a zero point of 0 has borrowed from its neighbour.
    ones = sum(1 << at for at in range(0, 32, bits))
    return unpack((words.view(np.uint32) + np.uint32(ones)).view(np.int32), bits)


def awq(arrays: Arrays) -> QuantizedMatrix:
    """AutoAWQ's GEMM layout: qweight, qzeros and scales."""
    qweight, qzeros, scales = arrays["qweight"], arrays["qzeros"], arrays["scales"]
    k, (n_groups, n) = len(qweight), scales.shape
    _must(n % 8 == 0 and n_groups > 0 and k % n_groups == 0, f"{n_groups} groups of [{n}, {k}]")
    _must(qweight.shape == (k, n // 8), f"qweight is {list(qweight.shape)} for [{n}, {k}]: not GEMM's layout")
    _must(qzeros.shape == (n_groups, n // 8), f"qzeros is {list(qzeros.shape)} for [{n}, {k}]")
    return QuantizedMatrix(
        bits=4,
        integers=np.ascontiguousarray(unpack_awq(qweight).T),
        scales=np.ascontiguousarray(scales.T),
        zeros=np.ascontiguousarray(unpack_awq(qzeros).T),
        group_size=k // n_groups,
    )


def pack_quantized(arrays: Arrays) -> QuantizedMatrix:
    """compressed-tensors' packed integers: weight_packed, weight_scale and weight_shape, and perhaps
    weight_zero_point and weight_g_idx. Integers are stored with an offset."""
    n, k = (int(size) for size in arrays["weight_shape"].reshape(-1))
    packed, scales = arrays["weight_packed"], arrays["weight_scale"]
    _must(packed.ndim == 2 and len(packed) == n, f"weight_packed is {list(packed.shape)} for [{n}, {k}]")
    bits = _bits(packed.shape[1], k)
    scales = _by_row(scales, n)
    n_groups = scales.shape[1]
    groups = arrays.get("weight_g_idx")
    _must(k % n_groups == 0, f"{n_groups} groups of {k} inputs")
    zeros = np.full((n, n_groups), 1 << (bits - 1), np.uint8)
    if "weight_zero_point" in arrays:
        zeros = unpack(_whole_words(arrays["weight_zero_point"].T, bits), bits)[:, :n].T
        _must(zeros.shape == (n, n_groups), f"weight_zero_point doesn't fit {list(scales.shape)}")
    matrix = QuantizedMatrix(
        bits=bits,
        integers=np.ascontiguousarray(unpack(_whole_words(packed, bits), bits)[:, :k]),
        scales=np.ascontiguousarray(scales),
        zeros=np.ascontiguousarray(zeros),
        group_size=k // n_groups,
        groups=None if groups is None else groups.reshape(-1).astype(np.int32),
    )
    if matrix.groups is not None:
        _must(bool(((matrix.groups >= 0) & (matrix.groups < n_groups)).all()), "weight_g_idx is out of range")
    return matrix if not matrix.is_sequential else matrix.in_sequence()


def _whole_words(words: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int32]:
    """Three bits come in threes of words; a row's last may be left out."""
    missing = -words.shape[-1] % 3 if bits == 3 else 0
    return np.pad(words, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(words)


def _by_row(scales: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """[N, G] of one for the whole matrix, one for each row, or [N, G]."""
    if scales.size == 1:
        return np.broadcast_to(scales.reshape(1, 1), (rows, 1))
    shaped = scales.reshape(-1, 1) if scales.ndim == 1 else scales
    _must(
        shaped.ndim == 2 and len(shaped) == rows, f"weight_scale is {list(scales.shape)} for {rows} outputs"
    )
    return shaped


def int_quantized(arrays: Arrays) -> Matrix:
    """compressed-tensors' plain bytes: weight and weight_scale, and perhaps weight_zero_point."""
    weight = arrays["weight"].view(np.int8)
    n, k = weight.shape
    scales = np.ascontiguousarray(_by_row(arrays["weight_scale"], n))
    zero = arrays.get("weight_zero_point")
    n_groups = scales.shape[1]
    if n_groups == 1 and (zero is None or not zero.any()):
        return Int8Matrix(weight, scales.astype(np.float32))
    _must(k % n_groups == 0, f"{n_groups} groups of {k} inputs")
    zeros = np.full((n, n_groups), 0x80, np.uint8)
    if zero is not None:
        zeros = np.ascontiguousarray(_by_row(zero.view(np.uint8) ^ np.uint8(0x80), n))
        _must(zeros.shape == scales.shape, f"weight_zero_point doesn't fit {list(scales.shape)}")
    return QuantizedMatrix(8, weight.view(np.uint8) ^ np.uint8(0x80), scales, zeros, k // n_groups)


def block_scales(scales: npt.NDArray[Any], shape: tuple[int, int]) -> Callable[[int, int], Floats]:
    """The scales of rows [start, stop) of an FP8 matrix, to be multiplied with them: [rows, K] or [rows, 1].

    Args:
        scales: one number, [N], [N, 1], or one for each block of rows and columns.
        shape: [N, K] of the matrix.
    """
    n, k = shape
    if scales.size == 1 or scales.shape in {(n,), (n, 1)}:
        by_row = _by_row(scales, n).astype(np.float32)
        return lambda start, stop: by_row[start:stop]
    _must(scales.ndim == 2 and 0 < len(scales) <= n and 0 < scales.shape[1] <= k, "its scales don't fit")
    # DeepSeek's blocks are square; of two sizes that fit, the power of two is meant.
    down, right = (_block(size, count) for size, count in zip(shape, scales.shape, strict=True))

    def rows(start: int, stop: int) -> Floats:
        wide = scales[np.arange(start, stop) // down].astype(np.float32)
        return wide[:, np.arange(k) // right]

    return rows


def _block(size: int, count: int) -> int:
    block = 1 << (-(-size // count) - 1).bit_length()
    if -(-size // block) != count:
        block = -(-size // count)
    _must(-(-size // block) == count, f"{count} blocks of {size}")
    return block
