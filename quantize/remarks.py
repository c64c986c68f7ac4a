"""What a person should know of a result that is not just what was asked for."""

import re
from collections import Counter
from collections.abc import Sequence

from models.ggml_types import DENSE
from models.gguf import TensorInfo
from quantize.plan import Target
from quantize.tensor_types import fallbacks
from quantize.type_choice import Choice

SUPERBLOCK = 256
"""Weights of a block in the K types and the smallest IQ types."""
AGAIN = (
    "the source is quantized already, and a second quantization costs quality: "
    "take the original checkpoint where you can"
)


def plain_remark(trouble: str) -> tuple[str, ...]:
    """Of a chat template that can't be used, with the reason; "" for one that can."""
    return (f"chats with it will be plain completions: {trouble}",) if trouble else ()


def remarks(tensors: Sequence[TensorInfo], target: Target, choice: Choice | None) -> tuple[str, ...]:
    """Of a file.

    Args:
        tensors: the file's.
        target: the type that was asked for.
        choice: the types of its tensors, where llama.cpp quantized it.
    """
    notes = _filled_up(tensors, target)
    if choice is not None and choice.mix is None:
        notes += fallbacks(choice.types, {one.name: one.type for one in tensors})
    if target.trained:
        notes += (f"{target.label} is for models that were trained to it: little is left of others",)
    return notes


def _filled_up(tensors: Sequence[TensorInfo], target: Target) -> tuple[str, ...]:
    """What llama.cpp took for rows that types in blocks of 256 weights do not fit."""
    if not re.search(r"_K|^IQ[1-3]|^IQ4_XS|^TQ", target.label):
        return ()
    odd = Counter(
        one.type.name
        for one in tensors
        if len(one.shape) > 1 and one.shape[0] % SUPERBLOCK and one.type not in DENSE
    )
    if not odd:
        return ()
    became = ", ".join(f"{count} {kind}" for kind, count in odd.most_common())
    return (
        f"{odd.total()} of {len(tensors)} tensors have rows that are no multiple of {SUPERBLOCK}, which "
        f"{target.label} needs, and became other types: {became}",
    )
