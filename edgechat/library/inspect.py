"""What a model is, from its header alone: no native code, and none of the weights is read."""

import json
from pathlib import Path
from typing import Any

import msgspec

from edgechat.library.local import model_name, parts_of
from models.gguf import GGUFHeader, LazyArray, TensorInfo, read_header
from models.receipt import receipt_in
from models.sizes import bits_per_weight
from models.verify import check_kind, check_layout
from models.verify_hyperparameters import MAX_LAYERS, check_hyperparameters

RECEIPT = "edgechat-receipt.json"
MAX_RECEIPT_BYTES = 2**24
F16_BYTES = 2

# `enum llama_ftype` in llama.h, named as llama_ftype_name does.
FILE_TYPES = {
    0: "all F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K - Medium",
    11: "Q3_K - Small",
    12: "Q3_K - Medium",
    13: "Q3_K - Large",
    14: "Q4_K - Small",
    15: "Q4_K - Medium",
    16: "Q5_K - Small",
    17: "Q5_K - Medium",
    18: "Q6_K",
    19: "IQ2_XXS - 2.0625 bpw",
    20: "IQ2_XS - 2.3125 bpw",
    21: "Q2_K - Small",
    22: "IQ3_XS - 3.3 bpw",
    23: "IQ3_XXS - 3.0625 bpw",
    24: "IQ1_S - 1.5625 bpw",
    25: "IQ4_NL - 4.5 bpw",
    26: "IQ3_S - 3.4375 bpw",
    27: "IQ3_S mix - 3.66 bpw",
    28: "IQ2_S - 2.5 bpw",
    29: "IQ2_M - 2.7 bpw",
    30: "IQ4_XS - 4.25 bpw",
    31: "IQ1_M - 1.75 bpw",
    32: "BF16",
    36: "TQ1_0 - 1.69 bpw ternary",
    37: "TQ2_0 - 2.06 bpw ternary",
    38: "MXFP4 MoE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}

# The first whose marks are all in the template names its family.
TEMPLATE_FAMILIES = (
    ("Harmony", ("<|channel|>",)),
    ("Granite", ("<|start_of_role|>",)),
    ("Command R", ("<|START_OF_TURN_TOKEN|>",)),
    ("DeepSeek", ("<｜User｜>",)),
    ("Llama 3", ("<|start_header_id|>",)),
    ("Llama 4", ("<|header_start|>",)),
    ("Gemma", ("<start_of_turn>",)),
    ("Gemma 4", ("<|turn>",)),
    ("ChatML", ("<|im_start|>",)),
    ("Llama 2", ("[INST]", "<<SYS>>")),
    ("Mistral", ("[INST]",)),
    ("Phi 3", ("<|user|>", "<|end|>")),
    ("GLM", ("[gMASK]",)),
    ("Zephyr", ("<|user|>",)),
)


class ModelSummary(msgspec.Struct, frozen=True):
    """A model in a few figures."""

    name: str
    path: str
    title: str
    """What the model calls itself; "" where it doesn't say."""
    architecture: str
    parameters: int
    quantization: str
    """As llama.cpp names the file's type, such as "Q4_K - Medium"."""
    bits_per_weight: float
    """Over all weights, those kept in higher precision included."""
    size_bytes: int
    """Of the file, or of all its parts."""
    n_ctx_train: int
    """Tokens of context that the model was trained on."""
    n_layers: int
    kv_bytes_per_token: int
    """Memory that one token of context takes, in float16; a sliding window takes less."""
    n_experts: int
    """0 for a dense model."""
    has_template: bool
    """False for a base model, which gets plain completion."""
    template_family: str
    """A guess; "" where there is none."""
    tokenizer: str
    """llama.cpp's name of its kind, and of its pre-tokenizer if there is one: "gpt2 (smollm)"."""
    vocab_size: int
    licence: str
    receipt: dict[str, Any] | None
    """What edgechat noted when it made the file."""


def summarize(path: Path, name: str = "") -> ModelSummary:
    """Read a model's header and say what it is; all is checked but its vocabulary.

    Args:
        path: the file; of a split model, its first part.
        name: what it is called in the library.

    Raises:
        FileNotFoundError: there is no such file.
        BrokenModelFile: it is no GGUF file, or damaged.
        UnsupportedModel: it is GGUF, but no model that can be loaded here.
    """
    header = read_header(path)
    check_kind(header)
    check_hyperparameters(header)
    parts = [header, *(read_header(part) for part in parts_of(path)[1:])]
    for part in parts:
        check_layout(part)
    tensors = [tensor for part in parts for tensor in part.tensors]
    parameters = sum(tensor.n_elements for tensor in tensors)
    template = text(header, "tokenizer.chat_template")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return ModelSummary(
        name=name or model_name(path),
        path=str(path),
        title=text(header, "general.name"),
        architecture=header.architecture,
        parameters=parameters,
        quantization=quantization(header, tensors),
        bits_per_weight=bits_per_weight(tensors, parameters),
        size_bytes=sum(part.file_size for part in parts),
        n_ctx_train=number(header, "context_length"),
        n_layers=number(header, "block_count"),
        kv_bytes_per_token=kv_bytes_per_token(header),
        n_experts=number(header, "expert_count"),
        has_template=bool(template),
        template_family=template_family(template),
        tokenizer=_tokenizer(header),
        vocab_size=len(tokens) if isinstance(tokens, LazyArray) else 0,
        licence=text(header, "general.license"),
        receipt=_receipt(path) or receipt_in(header),
    )


def quantization(header: GGUFHeader, tensors: list[TensorInfo]) -> str:
    """The file's type as llama.cpp names it; where the file doesn't say, the type of most weights."""
    kind = header.metadata.get("general.file_type")
    if isinstance(kind, int) and kind in FILE_TYPES:
        return FILE_TYPES[kind]
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.n_elements
    return max(sizes, key=sizes.__getitem__) + " (guessed)" if sizes else ""


def kv_bytes_per_token(header: GGUFHeader) -> int:
    """Bytes of float16 keys and values that one token takes in all layers; 0 without attention."""
    layers = number(header, "block_count")
    heads = _per_layer(header, "attention.head_count", layers)
    kv_heads = _per_layer(header, "attention.head_count_kv", layers) or heads
    if not heads or not heads[0]:
        return 0
    width = number(header, "embedding_length") // heads[0]
    key = number(header, "attention.key_length") or width
    value = number(header, "attention.value_length") or width
    return F16_BYTES * sum(kv_heads) * (key + value)


def template_family(template: str) -> str:
    """A guess at what family's turns a chat template writes; "" for none, "other" for an unknown one."""
    if not template:
        return ""
    for family, marks in TEMPLATE_FAMILIES:
        if all(mark in template for mark in marks):
            return family
    return "other"


def text(header: GGUFHeader, key: str) -> str:
    """A text of the metadata; "" where there is none."""
    value = header.metadata.get(key)
    return value if isinstance(value, str) else ""


def number(header: GGUFHeader, name: str) -> int:
    """A whole number under the architecture's prefix; 0 where there is none."""
    value = header.hyper(name)
    return value if isinstance(value, int) else 0


def _per_layer(header: GGUFHeader, name: str, layers: int) -> list[int]:
    value = header.hyper(name)
    if isinstance(value, LazyArray):
        return [int(one) for one in value.read_numbers()] if value.count <= MAX_LAYERS else []
    return [value] * min(layers, MAX_LAYERS) if isinstance(value, int) else []


def _tokenizer(header: GGUFHeader) -> str:
    kind, pre = text(header, "tokenizer.ggml.model"), text(header, "tokenizer.ggml.pre")
    return f"{kind} ({pre})" if pre and pre != "default" else kind


def _receipt(path: Path) -> dict[str, Any] | None:
    """The receipt beside the file; None where there is none that can be read."""
    place = path.with_name(RECEIPT)
    try:
        if place.stat().st_size > MAX_RECEIPT_BYTES:
            return None
        found = json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
