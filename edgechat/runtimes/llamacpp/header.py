"""What a loaded model's header says."""

import ctypes
from typing import Any

from edgechat.records import KVType
from edgechat.runtimes.llamacpp import abi

BYTES_PER_VALUE: dict[KVType, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


def meta(model: int, key: str) -> str | None:
    """A scalar of the GGUF header as text; None where there is none."""
    llama = abi.llama()
    room = 256
    while True:
        buffer = ctypes.create_string_buffer(room)
        n = llama.llama_model_meta_val_str(model, key.encode(), buffer, room)
        if n < 0:
            return None
        if n < room:
            return buffer.raw[:n].decode("utf-8", "replace")
        room = n + 1


def kv_bytes_per_token(model: int, kv_type: KVType) -> int:
    """Bytes of the cache for a token of context, for a model whose layers are all alike."""
    llama: Any = abi.llama()
    architecture = meta(model, "general.architecture")
    head = llama.llama_model_n_embd(model) // max(1, llama.llama_model_n_head(model))
    k = int(meta(model, f"{architecture}.attention.key_length") or head)
    v = int(meta(model, f"{architecture}.attention.value_length") or head)
    values = llama.llama_model_n_layer(model) * llama.llama_model_n_head_kv(model) * (k + v)
    return int(values * BYTES_PER_VALUE[kv_type])
