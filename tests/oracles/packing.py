"""How readers decode packed weights, value by value, written from the formats' descriptions.

GPTQ: AutoGPTQ's QuantLinear; AWQ: AutoAWQ's WQLinear_GEMM. Slow, plain Python integers, no numpy tricks.
"""

import numpy as np
import numpy.typing as npt


def bits_of(words: npt.NDArray[np.int32], index: int, bits: int) -> int:
    """Value number `index` of words that are filled from their low ends, one after the other."""
    value = 0
    for bit in range(bits):
        at = index * bits + bit
        value |= ((int(words[at // 32]) & 0xFFFFFFFF) >> (at % 32) & 1) << bit
    return value


def gptq_weight(
    tensors: dict[str, npt.NDArray[np.generic]], name: str, bits: int, *, stored_less_one: bool
) -> npt.NDArray[np.float64]:
    """W[n, k] = scales[g, n] * (q - z), float64 [N, K]."""
    qweight, qzeros = tensors[f"{name}.qweight"], tensors[f"{name}.qzeros"]
    scales, g_idx = tensors[f"{name}.scales"], tensors[f"{name}.g_idx"]
    k_total, n_total = len(g_idx), scales.shape[1]
    weight = np.zeros((n_total, k_total))
    for n in range(n_total):
        for k in range(k_total):
            group = int(g_idx[k])
            q = bits_of(qweight[:, n], k, bits)
            z = bits_of(qzeros[group], n, bits) + (1 if stored_less_one else 0)
            weight[n, k] = float(scales[group, n]) * (q - z)
    return weight


def awq_weight(
    tensors: dict[str, npt.NDArray[np.generic]], name: str, group_size: int
) -> npt.NDArray[np.float64]:
    """W[n, k] = scales[g, n] * (q - z), float64 [N, K]."""
    qweight, qzeros = tensors[f"{name}.qweight"], tensors[f"{name}.qzeros"]
    scales = tensors[f"{name}.scales"]
    nibble_of_column = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}
    k_total, n_total = qweight.shape[0], scales.shape[1]
    weight = np.zeros((n_total, k_total))
    for n in range(n_total):
        nibble = nibble_of_column[n % 8]
        for k in range(k_total):
            group = k // group_size
            q = (int(qweight[k, n // 8]) & 0xFFFFFFFF) >> (4 * nibble) & 15
            z = (int(qzeros[group, n // 8]) & 0xFFFFFFFF) >> (4 * nibble) & 15
            weight[n, k] = float(scales[group, n]) * (q - z)
    return weight
