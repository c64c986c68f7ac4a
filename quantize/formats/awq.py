"""AutoAWQ's checkpoints in the GEMM layout: one layer's tensors, and the configuration.

Per matrix of [N outputs, K inputs], at 4 bits in groups of g:

    qweight  int32 [K, N/8]    packed along the outputs, each eight in the order 0 2 4 6 1 3 5 7
    qzeros   int32 [K/g, N/8]  the zero points, packed alike
    scales   float16 [K/g, N]
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.packing import pack_awq
from models.quantized_matrix import QuantizedMatrix
from quantize.errors import BadRequest
from quantize.formats.safetensors import Tensor

BITS = 4


def check_shape(name: str, rows: int, columns: int, group_size: int) -> None:
    """Refuse a matrix that the layout can't hold.

    Raises:
        BadRequest: with what is wrong.
    """
    if rows % 8:
        raise BadRequest(f"{name} has {rows} outputs: AWQ packs eight at a time; take --to gptq or gguf")
    if columns % group_size:
        raise BadRequest(f"{name} has {columns} inputs, no multiple of the group size {group_size}")


def layer_tensors(name: str, matrix: QuantizedMatrix) -> dict[str, Tensor]:
    """The tensors of one matrix; its bias, if any, keeps its name and is the caller's.

    Raises:
        BadRequest: the layout can't hold it.
    """
    check_shape(name, *matrix.shape, matrix.group_size)
    if matrix.bits != BITS or not matrix.is_sequential:
        raise ValueError(f"{name}: AWQ has 4 bits and sequential groups")
    return {
        f"{name}.qweight": Tensor(pack_awq(np.ascontiguousarray(matrix.integers.T))),
        f"{name}.qzeros": Tensor(pack_awq(np.ascontiguousarray(matrix.zeros.T))),
        f"{name}.scales": Tensor(np.ascontiguousarray(matrix.scales.T).astype(np.float16)),
    }


def config(*, group_size: int, not_converted: Sequence[str] = ()) -> dict[str, Any]:
    """What stands in config.json as "quantization_config".

    Args:
        group_size: columns that share a scale.
        not_converted: parts of module names that were left as they are, such as "lm_head".
    """
    return {
        "quant_method": "awq",
        "bits": BITS,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(not_converted) or None,
    }


def old_config(*, group_size: int, not_converted: Sequence[str] = ()) -> dict[str, Any]:
    """What stands in quant_config.json, which AutoAWQ reads instead of config.json where it is there.

    Args:
        group_size: columns that share a scale.
        not_converted: as for `config`.
    """
    return {
        "zero_point": True,
        "q_group_size": group_size,
        "w_bit": BITS,
        "version": "GEMM",
        "modules_to_not_convert": list(not_converted) or None,
    }
