"""Which weights llama.cpp copies into a layout of its own for this CPU, and so holds twice.

Sources: ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp and, for Intel's matrix unit, which is
asked first, supports_op in ggml-cpu/amx/amx.cpp: the types, and what must divide the rows and columns. Only
matrices that are multiplied are copied; a table that tokens are looked up in stays as it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from models.ggml_types import GGMLType
from models.gguf import GGUFHeader, TensorInfo

X86 = {GGMLType.Q4_0: 8, GGMLType.Q4_K: 8, GGMLType.IQ4_NL: 8, GGMLType.MXFP4: 8}
X86_WIDE = {GGMLType.Q2_K: 8}
ARM = {
    GGMLType.Q4_0: 4,
    GGMLType.Q4_K: 8,
    GGMLType.Q5_K: 8,
    GGMLType.Q6_K: 8,
    GGMLType.IQ4_NL: 4,
    GGMLType.MXFP4: 4,
    GGMLType.Q8_0: 4,
}
AMX_ROWS = 32
AMX = {
    GGMLType.Q4_0: 32,
    GGMLType.Q4_1: 32,
    GGMLType.Q8_0: 32,
    GGMLType.Q4_K: 256,
    GGMLType.Q5_K: 256,
    GGMLType.Q6_K: 256,
    GGMLType.IQ4_XS: 256,
    GGMLType.F16: 16,
}
"""What must divide the columns."""
AMX_GROWS = {
    GGMLType.Q8_0: (38, 34),
    GGMLType.Q4_K: (148, 144),
    GGMLType.Q5_K: (180, 176),
    GGMLType.IQ4_XS: (138, 136),
}
"""Bytes of a block there, and in the file; others keep their size."""
TOKEN_TABLE = "token_embd.weight"
OUTPUT = "output.weight"
LOOKED_UP = (TOKEN_TABLE, "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True, slots=True)
class Laid:
    """Where weights lie, in bytes."""

    mapped: int
    """Of the files, from the first tensor that is not copied to the last: what is before and after them
    llama.cpp gives up."""
    cold: int
    """Of these, tensors that were copied."""
    stored: int
    """All tensors, as the files have them, and what is between them."""
    originals: int
    """Of these, tensors that are copied and needed no more."""
    copies: int


def laid(parts: Iterable[GGUFHeader], features: Iterable[str]) -> Laid:
    """How llama.cpp lays out a model's weights.

    Args:
        parts: the headers of the model's files.
        features: of the CPU, as `edgechat.hardware` names them.
    """
    parts, features = list(parts), frozenset(features)
    copied = copies([tensor for part in parts for tensor in part.tensors], features)
    moved = [tensor for part in parts for tensor in part.tensors if tensor.name in copied]
    mapped = cold = 0
    for part in parts:
        stay = [one for one in part.tensors if one.name not in copied or one.name in LOOKED_UP]
        if not stay:
            continue
        first = min(one.offset for one in stay)
        last = max(one.offset + one.n_bytes for one in stay)
        mapped += last - first
        cold += sum(one.n_bytes for one in part.tensors if one.name in copied and first <= one.offset < last)
    return Laid(
        mapped=mapped,
        cold=cold,
        stored=sum(part.file_size - part.data_offset for part in parts),
        originals=sum(one.n_bytes for one in moved if one.name not in LOOKED_UP),
        copies=sum(copied.values()),
    )


def copies(tensors: Iterable[TensorInfo], features: Iterable[str]) -> dict[str, int]:
    """The tensors that are copied, by name, and the bytes of each copy."""
    features = frozenset(features)
    rows = _rows(features)
    tensors = list(tensors)
    tied = not any(tensor.name == OUTPUT for tensor in tensors)
    found = {}
    for tensor in tensors:
        if tensor.name in LOOKED_UP and not (tied and tensor.name == TOKEN_TABLE):
            continue
        if "amx_int8" in features and _fits_amx(tensor):
            there, stored = AMX_GROWS.get(tensor.type, (1, 1))
            found[tensor.name] = tensor.n_bytes * there // stored
        elif (step := rows.get(tensor.type)) and len(tensor.shape) in (2, 3) and tensor.shape[1] % step == 0:
            found[tensor.name] = tensor.n_bytes
    return found


def _fits_amx(tensor: TensorInfo) -> bool:
    step = AMX.get(tensor.type)
    if step is None or len(tensor.shape) != 2:
        return False
    return tensor.shape[0] % step == 0 and tensor.shape[1] % AMX_ROWS == 0


def _rows(features: frozenset[str]) -> dict[GGMLType, int]:
    """Types that are copied, and what their number of rows must be divisible by."""
    if "avx2" in features:
        return X86 | X86_WIDE if "avx512f" in features else X86
    return ARM if "asimddp" in features else {}
