"""Small integers packed into 32-bit words, as GPTQ, AWQ and compressed-tensors store them.

All three fill a word from its low end. Three bits don't divide 32, so there values cross words: 32 of them
make three words. AWQ permutes each eight values first.
"""

import numpy as np
import numpy.typing as npt

Small = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]

BITS = (2, 3, 4, 8)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word of AWQ's holds the value AWQ_ORDER[i] of its eight."""
_AWQ_REVERSE = (0, 4, 1, 5, 2, 6, 3, 7)


def values_per_period(bits: int) -> int:
    """How many values fill whole words: the smallest such number."""
    return 32 if bits == 3 else 32 // bits


def pack(values: Small, bits: int) -> Words:
    """Pack along the last axis.

    Args:
        values: [..., n], each under 2**bits; n is a multiple of `values_per_period(bits)`.
        bits: one of `BITS`.

    Returns:
        [..., n * bits / 32].
    """
    if bits not in BITS or values.shape[-1] % values_per_period(bits):
        raise ValueError(f"{values.shape[-1]} values of {bits} bits don't fill words")
    packed: Small
    if bits == 3:
        one_by_one = np.unpackbits(values[..., None], axis=-1, count=3, bitorder="little")
        packed = np.packbits(one_by_one.reshape(*values.shape[:-1], -1), axis=-1, bitorder="little")
    else:
        per_byte = 8 // bits
        packed = values[..., 0::per_byte].copy()
        for i in range(1, per_byte):
            packed |= values[..., i::per_byte] << np.uint8(bits * i)
    words: Words = np.ascontiguousarray(packed).view("<i4").astype(np.int32, copy=False)
    return words


def unpack(words: Words, bits: int) -> Small:
    """Undo `pack`.

    Args:
        words: [..., n].
        bits: one of `BITS`.

    Returns:
        [..., n * 32 / bits].
    """
    raw = np.ascontiguousarray(words.astype("<i4", copy=False)).view(np.uint8)
    if bits == 8:
        return raw
    if bits == 3:
        one_by_one = np.unpackbits(raw, axis=-1, bitorder="little")
        triples = one_by_one.reshape(*raw.shape[:-1], -1, 3)
        three: Small = triples[..., 0] | triples[..., 1] << np.uint8(1) | triples[..., 2] << np.uint8(2)
        return three
    per_byte = 8 // bits
    values = np.empty((*raw.shape[:-1], raw.shape[-1] * per_byte), np.uint8)
    mask = np.uint8((1 << bits) - 1)
    for i in range(per_byte):
        values[..., i::per_byte] = raw >> np.uint8(bits * i) & mask
    return values


def pack_awq(values: Small) -> Words:
    """Pack four-bit values along the last axis in AWQ's order."""
    eights = values.reshape(*values.shape[:-1], -1, 8)[..., AWQ_ORDER]
    return pack(np.ascontiguousarray(eights).reshape(values.shape), 4)


def unpack_awq(words: Words) -> Small:
    """Undo `pack_awq`."""
    values = unpack(words, 4)
    eights = values.reshape(*values.shape[:-1], -1, 8)[..., _AWQ_REVERSE]
    return np.ascontiguousarray(eights).reshape(values.shape)
