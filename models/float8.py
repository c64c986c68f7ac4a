"""Eight-bit floats (Micikevicius et al. 2022): E4M3, which has no infinity, and E5M2."""

from functools import cache

import numpy as np
import numpy.typing as npt

DTYPES = ("F8_E4M3", "F8_E5M2")
"""As safetensors calls them."""


def to_float32(raw: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    """Values of raw bytes."""
    values: npt.NDArray[np.float32] = _table(dtype)[raw]
    return values


@cache
def _table(dtype: str) -> npt.NDArray[np.float32]:
    """What each of the 256 bytes means."""
    code = np.arange(256)
    mantissa_bits, bias = {"F8_E4M3": (3, 7), "F8_E5M2": (2, 15)}[dtype]
    exponent = (code & 0x7F) >> mantissa_bits
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if dtype == "F8_E4M3":
        values = np.where((code & 0x7F) == 0x7F, np.nan, values)
    else:
        values = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), values)
    return np.where(code & 0x80, -values, values).astype(np.float32)
