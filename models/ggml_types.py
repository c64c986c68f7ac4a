"""The tensor types of GGUF: how many elements are in a block, and how many bytes a block takes.

Source: `enum ggml_type` in ggml.h and the block structs in ggml-common.h.
"""

from enum import IntEnum
from typing import NamedTuple


class GGMLType(IntEnum):
    """A tensor's type, as its number stands in the file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


DENSE = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
"""What weights are that nothing quantized."""


class Block(NamedTuple):
    """The unit in which a type is stored."""

    elements: int
    n_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits that one element takes, its share of the block's scales included."""
        return 8 * self.n_bytes / self.elements


BLOCKS: dict[GGMLType, Block] = {
    GGMLType.F32: Block(1, 4),
    GGMLType.F16: Block(1, 2),
    GGMLType.Q4_0: Block(32, 18),
    GGMLType.Q4_1: Block(32, 20),
    GGMLType.Q5_0: Block(32, 22),
    GGMLType.Q5_1: Block(32, 24),
    GGMLType.Q8_0: Block(32, 34),
    # gguf-py says 40 bytes here, from when the two scales were float32; ggml's struct holds two float16.
    GGMLType.Q8_1: Block(32, 36),
    GGMLType.Q2_K: Block(256, 84),
    GGMLType.Q3_K: Block(256, 110),
    GGMLType.Q4_K: Block(256, 144),
    GGMLType.Q5_K: Block(256, 176),
    GGMLType.Q6_K: Block(256, 210),
    GGMLType.Q8_K: Block(256, 292),
    GGMLType.IQ2_XXS: Block(256, 66),
    GGMLType.IQ2_XS: Block(256, 74),
    GGMLType.IQ3_XXS: Block(256, 98),
    GGMLType.IQ1_S: Block(256, 50),
    GGMLType.IQ4_NL: Block(32, 18),
    GGMLType.IQ3_S: Block(256, 110),
    GGMLType.IQ2_S: Block(256, 82),
    GGMLType.IQ4_XS: Block(256, 136),
    GGMLType.I8: Block(1, 1),
    GGMLType.I16: Block(1, 2),
    GGMLType.I32: Block(1, 4),
    GGMLType.I64: Block(1, 8),
    GGMLType.F64: Block(1, 8),
    GGMLType.IQ1_M: Block(256, 56),
    GGMLType.BF16: Block(1, 2),
    GGMLType.TQ1_0: Block(256, 54),
    GGMLType.TQ2_0: Block(256, 66),
    GGMLType.MXFP4: Block(32, 17),
    GGMLType.NVFP4: Block(64, 36),
    GGMLType.Q1_0: Block(128, 18),
    GGMLType.Q2_0: Block(64, 18),
}

# Numbers that older files used and llama.cpp has given up.
REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
