"""Writes checkpoints by hand, so that anything in them can be wrong. No torch, no transformers."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 128, 4, 2, 2
HEAD = HIDDEN // HEADS
SPECIALS = ["<|end|>", "<|begin|>"]


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) if b in plain else chr(256 + sum(c not in plain for c in range(b))) for b in range(256)]


VOCAB = [*SPECIALS, *byte_alphabet(), "he", "ll", "hell", "hello"]
CHAT_TEMPLATE = "{{ messages[0].content }}"
MERGES = ["h e", "l l", "he ll", "hell o"]


def config(**changes: Any) -> dict[str, Any]:
    """A Llama's config.json; a change to None takes the key away."""
    numbers = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(VOCAB),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 0,
        **changes,
    }
    return {key: value for key, value in numbers.items() if value is not None}


def tokenizer(**changes: Any) -> dict[str, Any]:
    """A byte-level tokenizer.json."""
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": t, "special": True} for i, t in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": MERGES},
        **changes,
    }


def weights(seed: int = 5) -> dict[str, np.ndarray]:
    """The tensors of that config, in float32, of plain random numbers."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(VOCAB), HIDDEN)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (HIDDEN,),
            f"{layer}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64", "uint8": "F8_E4M3"}


def safetensors(tensors: Mapping[str, np.ndarray], **header: Any) -> bytes:
    """A safetensors file; uint16 stands for bfloat16 and uint8 for eight-bit floats."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        offsets = [at, at + tensor.nbytes]
        entries[name] = {
            "dtype": DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        at += tensor.nbytes
    entries |= header
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(tensor.tobytes() for tensor in tensors.values())


def write(
    folder: Path,
    *,
    tensors: Mapping[str, np.ndarray] | None = None,
    model: Mapping[str, Any] | None = None,
    words: Mapping[str, Any] | None = None,
) -> Path:
    """A whole checkpoint; what is not given is sound."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config() if model is None else model))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer() if words is None else words))
    names = {"bos_token": SPECIALS[1], "eos_token": {"content": SPECIALS[0]}, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "model.safetensors").write_bytes(safetensors(weights() if tensors is None else tensors))
    return folder


def write_wide(folder: Path) -> Path:
    """A checkpoint whose mlp.down_proj has rows of 256 weights, which fill the blocks of K types."""
    tensors = weights()
    random = np.random.default_rng(3)
    for i in range(LAYERS):
        for name, shape in (("gate_proj", (256, 64)), ("up_proj", (256, 64)), ("down_proj", (64, 256))):
            values = random.standard_normal(shape, np.float32) * np.float32(0.1)
            tensors[f"model.layers.{i}.mlp.{name}.weight"] = values
    return write(folder, model=config(intermediate_size=256), tensors=tensors)
