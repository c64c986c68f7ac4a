"""Which weights llama.cpp copies into a layout of its own for this CPU, and so holds twice.

Source: ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp: the types, and what must divide the rows.
Only matrices that are multiplied are copied; a table that tokens are looked up in stays as it is.
"""

from collections.abc import Iterable

from models.ggml_types import GGMLType
from models.gguf import TensorInfo

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
TOKEN_TABLE = "token_embd.weight"
OUTPUT = "output.weight"
LOOKED_UP = (TOKEN_TABLE, "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")


def repacked_bytes(tensors: Iterable[TensorInfo], features: Iterable[str]) -> int:
    """Bytes of the copies.

    Args:
        tensors: of all the model's files.
        features: of the CPU, as `edgechat.hardware` names them.
    """
    rows = _rows(frozenset(features))
    tensors = list(tensors)
    tied = not any(tensor.name == OUTPUT for tensor in tensors)
    return sum(tensor.n_bytes for tensor in tensors if _is_copied(tensor, rows, tied=tied))


def _is_copied(tensor: TensorInfo, rows: dict[GGMLType, int], *, tied: bool) -> bool:
    if tensor.name in LOOKED_UP and not (tied and tensor.name == TOKEN_TABLE):
        return False
    step = rows.get(tensor.type)
    return step is not None and len(tensor.shape) in (2, 3) and tensor.shape[1] % step == 0


def _rows(features: frozenset[str]) -> dict[GGMLType, int]:
    """Types that are copied, and what their number of rows must be divisible by."""
    if "avx2" in features:
        return X86 | X86_WIDE if "avx512f" in features else X86
    return ARM if "asimddp" in features else {}
