"""How llama.cpp's context is made from LoadSettings: for use, and to ask what it would take."""

from typing import Any

from edgechat.library.estimate import MAX_UBATCH, outputs_max
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import abi
from edgechat.runtimes.llamacpp.attention import attention_for

LOAD_MODE_AUTO, LOAD_MODE_NONE = -1, 0
GGML_TYPE = {"f16": 1, "q8_0": 8, "q4_0": 2}


def context_params(
    settings: LoadSettings, n_ctx: int, model: int, n_threads: int = 1, *, on_gpu: bool = False
) -> Any:
    """A `llama_context_params`.

    Args:
        settings: how the model is loaded.
        n_ctx: tokens of context, resolved.
        model: llama.cpp's pointer.
        n_threads: for single tokens and for batches.
        on_gpu: layers of it are on one.
    """
    llama = abi.llama()
    params = llama.llama_context_default_params()
    # One sequence more than can be used: `evict` copies shared cells through it.
    n_seq_max = settings.n_sequences + 1
    params.n_ctx = n_ctx
    params.n_seq_max = n_seq_max
    params.n_batch = max(settings.n_batch, n_seq_max)
    attention = attention_for(
        settings,
        n_ctx,
        int(llama.llama_model_n_head(model)),
        min(params.n_batch, MAX_UBATCH),
        on_gpu=on_gpu,
    )
    params.n_ubatch = attention.n_ubatch
    params.n_outputs_max = outputs_max(vocabulary_size(model), params.n_batch, n_seq_max)
    params.n_threads = params.n_threads_batch = n_threads
    params.kv_unified = True  # one pool for all sequences: forks share cells
    params.swa_full = True  # sliding-window layers keep all, so that truncate and evict are exact
    params.offload_kqv = True
    params.type_k = params.type_v = GGML_TYPE[settings.kv_type]
    params.flash_attn_type = attention.flash
    return params


def vocabulary_size(model: int) -> int:
    """Tokens that a model knows, by llama.cpp's pointer to it."""
    llama = abi.llama()
    return int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)))
