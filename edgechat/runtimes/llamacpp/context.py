"""How llama.cpp's context is made from LoadSettings: for use, and to ask what it would take."""

from typing import Any

from edgechat.library.estimate import MAX_UBATCH, outputs_max
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import abi

LOAD_MODE_AUTO, LOAD_MODE_NONE = -1, 0
FLASH_AUTO, FLASH_ON = -1, 1
GGML_TYPE = {"f16": 1, "q8_0": 8, "q4_0": 2}


def context_params(settings: LoadSettings, n_ctx: int, n_vocab: int, n_threads: int = 1) -> Any:
    """A `llama_context_params`.

    Args:
        settings: how the model is loaded.
        n_ctx: tokens of context, resolved.
        n_vocab: tokens of the vocabulary.
        n_threads: for single tokens and for batches.
    """
    params = abi.llama().llama_context_default_params()
    # One sequence more than can be used: `evict` copies shared cells through it.
    n_seq_max = settings.n_sequences + 1
    params.n_ctx = n_ctx
    params.n_seq_max = n_seq_max
    params.n_batch = max(settings.n_batch, n_seq_max)
    params.n_ubatch = min(params.n_batch, MAX_UBATCH)
    params.n_outputs_max = outputs_max(n_vocab, params.n_batch, n_seq_max)
    params.n_threads = params.n_threads_batch = n_threads
    params.kv_unified = True  # one pool for all sequences: forks share cells
    params.swa_full = True  # sliding-window layers keep all, so that truncate and evict are exact
    params.offload_kqv = True
    params.type_k = params.type_v = GGML_TYPE[settings.kv_type]
    params.flash_attn_type = FLASH_AUTO if settings.kv_type == "f16" else FLASH_ON
    return params
