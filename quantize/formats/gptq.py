"""AutoGPTQ's checkpoints: one layer's tensors, and the configuration that readers look for.

Per matrix of [N outputs, K inputs], at b bits in groups of g:

    qweight  int32 [K*b/32, N]    packed along the inputs
    qzeros   int32 [K/g, N*b/32]  packed along the outputs; format "gptq" stores the zero point less one
    scales   float16 [K/g, N]
    g_idx    int32 [K]            each input's group

Format "gptq_v2" stores the zero point itself. What is read from either is in models/packed.py.
"""

from enum import StrEnum
from typing import Any

import numpy as np

from models.packing import pack, values_per_period
from models.quantized_matrix import QuantizedMatrix
from quantize.errors import BadRequest
from quantize.formats.safetensors import Tensor


class CheckpointFormat(StrEnum):
    """How zero points are stored."""

    V1 = "gptq"
    V2 = "gptq_v2"


def check_shape(name: str, rows: int, columns: int, bits: int) -> None:
    """Refuse a matrix whose rows or columns don't fill words.

    Raises:
        BadRequest: with what is wrong.
    """
    period = values_per_period(bits)
    for what, size in (("outputs", rows), ("inputs", columns)):
        if size % period:
            raise BadRequest(
                f"{name} has {size} {what}: {bits} bits pack {period} at a time; take another --bits or --to"
            )


def layer_tensors(
    name: str, matrix: QuantizedMatrix, checkpoint_format: CheckpointFormat = CheckpointFormat.V1
) -> dict[str, Tensor]:
    """The tensors of one matrix; its bias, if any, keeps its name and is the caller's.

    Args:
        name: of the module, such as "model.layers.0.mlp.up_proj".
        matrix: zero points from 1 where the format is V1.
        checkpoint_format: how zero points are stored.

    Raises:
        BadRequest: the matrix doesn't fill words.
    """
    check_shape(name, *matrix.shape, matrix.bits)
    zeros = matrix.zeros.T
    if checkpoint_format is CheckpointFormat.V1:
        if not zeros.all():
            raise ValueError(f"{name} has a zero point of 0, which the first format can't store")
        zeros = zeros - np.uint8(1)
    groups = matrix.sequential_groups() if matrix.groups is None else matrix.groups
    return {
        f"{name}.qweight": Tensor(np.ascontiguousarray(pack(matrix.integers, matrix.bits).T)),
        f"{name}.qzeros": Tensor(pack(np.ascontiguousarray(zeros), matrix.bits)),
        f"{name}.scales": Tensor(np.ascontiguousarray(matrix.scales.T).astype(np.float16)),
        f"{name}.g_idx": Tensor(groups),
    }


def config(
    *,
    bits: int,
    group_size: int,
    symmetric: bool,
    desc_act: bool = False,
    static_groups: bool = True,
    damping: float = 0.01,
    checkpoint_format: CheckpointFormat = CheckpointFormat.V1,
    quantizer: str = "",
) -> dict[str, Any]:
    """What stands in quantize_config.json, and in config.json as "quantization_config".

    Args:
        bits: of a weight.
        group_size: -1 for whole rows.
        symmetric: all zero points stand in the middle.
        desc_act: g_idx is not sequential.
        static_groups: scales were found before the columns were put in order.
        damping: of the Hessian.
        checkpoint_format: how zero points are stored.
        quantizer: "name:version" of who wrote it.
    """
    return {
        "bits": bits,
        "group_size": group_size,
        "damp_percent": damping,
        "desc_act": desc_act,
        "static_groups": static_groups,
        "sym": symmetric,
        "true_sequential": False,
        "lm_head": False,
        "quant_method": "gptq",
        "checkpoint_format": checkpoint_format.value,
        "pack_dtype": "int32",
        "meta": {"quantizer": [quantizer]} if quantizer else {},
    }
