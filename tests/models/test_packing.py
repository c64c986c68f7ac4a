"""Packing, against words written out by hand."""

import numpy as np
import pytest

from models.packing import AWQ_ORDER, pack, pack_awq, unpack, unpack_awq
from tests.oracles.packing import bits_of


def words(*values: int) -> np.ndarray:
    """32-bit words as they stand in a file, written as unsigned."""
    return np.array(values, np.uint32).view(np.int32)


# Values, and the words that they make: written out, low end first.
BY_HAND = [
    (4, [1, 2, 3, 4, 5, 6, 7, 8], words(0x87654321)),
    (4, [15, 0, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0], words(0x8000000F, 0x00000001)),
    (8, [0x01, 0x23, 0x45, 0x67, 0xFF, 0x00, 0x80, 0x7F], words(0x67452301, 0x7F8000FF)),
    (
        2,
        [0, 1, 2, 3, 3, 2, 1, 0, 1, 1, 1, 1, 0, 0, 0, 2],
        words(0b10_00_00_00_01_01_01_01_00_01_10_11_11_10_01_00),
    ),
    # Three bits: the eleventh value has two bits in the first word and one in the second, the twenty-second
    # one in the second and two in the third.
    (
        3,
        [1] * 10 + [0b101] + [2] * 10 + [0b110] + [3] * 10,
        words(
            0b01_001_001_001_001_001_001_001_001_001_001,
            0b0_010_010_010_010_010_010_010_010_010_010_1,
            0b011_011_011_011_011_011_011_011_011_011_11,
        ),
    ),
]


@pytest.mark.parametrize(("bits", "values", "packed"), BY_HAND)
def test_by_hand_both_ways(bits: int, values: list[int], packed: np.ndarray) -> None:
    small = np.array(values, np.uint8)
    assert pack(small, bits).tolist() == packed.tolist()
    assert unpack(packed, bits).tolist() == values
    twice = np.stack([small, small[::-1]])
    assert pack(twice, bits)[0].tolist() == packed.tolist()
    assert unpack(pack(twice, bits), bits).tolist() == twice.tolist()


def test_awq_by_hand_both_ways() -> None:
    values = [0xA, 0xB, 0xC, 0xD, 0xE, 0xF, 0x1, 0x2]
    # From the low end: columns 0, 2, 4, 6, 1, 3, 5, 7.
    packed = words(0x2FDB1ECA)
    assert pack_awq(np.array(values, np.uint8)).tolist() == packed.tolist()
    assert unpack_awq(packed).tolist() == values
    assert [values[column] for column in AWQ_ORDER] == [0xA, 0xC, 0xE, 0x1, 0xB, 0xD, 0xF, 0x2]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_random_values_bit_by_bit(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 2**bits, (3, 96), dtype=np.uint8)
    packed = pack(values, bits)
    assert packed.shape == (3, 96 * bits // 32)
    assert packed.dtype == np.int32
    for row in range(3):
        assert [bits_of(packed[row], i, bits) for i in range(96)] == values[row].tolist()
    assert (unpack(packed, bits) == values).all()


@pytest.mark.parametrize(("bits", "count"), [(4, 7), (3, 33), (3, 16), (8, 2), (5, 32)])
def test_refuses_what_fills_no_words(bits: int, count: int) -> None:
    with pytest.raises(ValueError, match="words"):
        pack(np.zeros(count, np.uint8), bits)
