"""compressed-tensors checkpoints with eight-bit integers: one layer's tensors, and the configuration.

W8A8, "int-quantized":   weight int8 [N, K], weight_scale [N, 1]
W8A16, "pack-quantized": weight_packed int32 [N, K/4] of value + 128 along the inputs, weight_scale [N, 1],
                         weight_shape int64 [2]

A W8A8 checkpoint may hold some matrices in W8A16: they are named in a group of their own.

Scales are stored in the model's own type.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from models.int8_matrix import Int8Matrix
from models.packing import pack
from quantize.errors import BadRequest
from quantize.formats.safetensors import Tensor
from quantize.tensors import to_bfloat16


class Scheme(StrEnum):
    """What is in eight bits."""

    W8A8 = "w8a8"
    """Weights, and activations by a scale per token that is found while the model runs."""
    W8A16 = "w8a16"
    """Weights alone."""

    @property
    def layout(self) -> str:
        """As the configuration calls it."""
        return "int-quantized" if self is Scheme.W8A8 else "pack-quantized"


def layer_tensors(name: str, matrix: Int8Matrix, scheme: Scheme, dtype: str) -> dict[str, Tensor]:
    """The tensors of one matrix; its bias, if any, keeps its name and is the caller's.

    Args:
        name: of the module.
        matrix: whose scales are values of `dtype`.
        scheme: which layout.
        dtype: of the model, as safetensors calls it: F32, F16 or BF16.

    Raises:
        BadRequest: the rows don't fill words.
    """
    scale = Tensor(_stored(matrix.scales, dtype), dtype)
    if scheme is Scheme.W8A8:
        return {f"{name}.weight": Tensor(matrix.integers), f"{name}.weight_scale": scale}
    columns = matrix.shape[1]
    if columns % 4:
        raise BadRequest(f"{name} has {columns} inputs: W8A16 packs four at a time; take W8A8")
    # Adding 128 flips the sign bit of two's complement.
    offset = matrix.integers.view(np.uint8) ^ np.uint8(0x80)
    return {
        f"{name}.weight_packed": Tensor(pack(np.ascontiguousarray(offset), 8)),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": Tensor(np.array(matrix.shape, np.int64)),
    }


def _stored(scales: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    if dtype == "BF16":
        return to_bfloat16(np.ascontiguousarray(scales))
    return scales.astype({"F32": np.float32, "F16": np.float16}[dtype])


MIXED = "mixed-precision"
"""The format of a configuration whose groups have different ones."""


def config(scheme: Scheme, ignored: Sequence[str] = ("lm_head",), kept: Sequence[str] = ()) -> dict[str, Any]:
    """What stands in config.json as "quantization_config".

    Args:
        scheme: which layout.
        ignored: linear modules that were left as they are.
        kept: modules in W8A16 whatever the scheme: readers take a module's name before its class.
    """
    groups = {"group_0": _group(scheme, ["Linear"])}
    if kept:
        groups["group_1"] = _group(Scheme.W8A16, kept)
    return {
        "quant_method": "compressed-tensors",
        "format": MIXED if kept else scheme.layout,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _group(scheme: Scheme, targets: Sequence[str]) -> dict[str, Any]:
    return {
        "targets": list(targets),
        "weights": _arguments(strategy="channel", dynamic=False),
        "input_activations": _arguments(strategy="token", dynamic=True) if scheme is Scheme.W8A8 else None,
        "output_activations": None,
        "format": scheme.layout,
    }


def _arguments(*, strategy: str, dynamic: bool) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": None,
        "block_structure": None,
        "dynamic": dynamic,
        "actorder": None,
        "observer": None if dynamic else "minmax",
        "observer_kwargs": {},
    }
