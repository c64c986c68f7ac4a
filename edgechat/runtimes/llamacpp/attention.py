"""How attention is computed: by llama.cpp's fused kernel ("flash attention"), or product by product.

The fused kernel keeps no scores, and is what GPUs and quantized caches need. On a CPU llama.cpp's goes
through the cache key by key for batches below 64 tokens, which may take several times as long as two products
of matrices: then every token of an answer gets slower as the context fills, and a batch of drafts takes as
long as its tokens one by one. What is faster here is measured, in milliseconds, once in a process.

Product by product, the scores of a batch against the whole context are in memory: batches are made smaller,
and where that is not enough it is the fused kernel after all.
"""

import ctypes
import time
from functools import cache
from typing import Any, NamedTuple

from edgechat.errors import UnsupportedError
from edgechat.library.estimate import scores_batch
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import abi

AUTO, ON, OFF = -1, 1, 0

# Of the trial: about one layer of a small model.
HEADS, KV_HEADS, WIDTH, KEYS = 8, 2, 64, 1024
RUNS = 5
BETTER = 0.9
"""Products are taken if they take less than this of the fused kernel's time, which needs less memory."""
F32, F16 = 0, 1
ARENA = 8 * 2**20


class Attention(NamedTuple):
    """How a context computes attention."""

    flash: int
    """`llama_flash_attn_type`."""
    n_ubatch: int
    """Most tokens that are computed at once."""


def attention_for(settings: LoadSettings, n_ctx: int, n_heads: int, most: int, *, on_gpu: bool) -> Attention:
    """How a context shall compute it.

    Args:
        settings: how the model is loaded.
        n_ctx: tokens of the context.
        n_heads: query heads of a layer.
        most: tokens that may be computed at once.
        on_gpu: layers are on one.
    """
    if settings.kv_type != "f16":
        return Attention(ON, most)
    n_ubatch = min(most, scores_batch(n_ctx, n_heads))
    if on_gpu or not n_ubatch or not products_are_faster():
        return Attention(AUTO, most)
    return Attention(OFF, evenly(n_ubatch, settings.n_sequences + 1))


def evenly(n_ubatch: int, n_sequences: int) -> int:
    """About so many tokens, as many for each sequence: llama.cpp makes room for such batches, and one that is
    larger takes a fifth more time each time. In whole tiles of 32 tokens where that can be."""
    tiles = (n for n in range(n_ubatch, n_ubatch // 2, -1) if n % 32 == 0 and n % n_sequences == 0)
    return next(tiles, max(n_ubatch // n_sequences * n_sequences, n_sequences))


@cache
def products_are_faster() -> bool:
    """Whether a token's attention takes less time product by product, here and in this llama.cpp."""
    try:
        trial = _Trial()
    except UnsupportedError:
        return False
    try:
        fused, products = trial.seconds(trial.fused()), trial.seconds(trial.products())
    finally:
        trial.close()
    return products < BETTER * fused


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class _Trial:
    """One token's attention, in a context of ggml's."""

    def __init__(self) -> None:
        """
        Raises:
            UnsupportedError: ggml has no such functions, or no memory for it.
        """
        pointer, integer, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        self._free = abi.function("ggml_free", None, pointer)
        self._new = abi.function(
            "ggml_new_tensor_3d", pointer, pointer, ctypes.c_int, integer, integer, integer
        )
        self._data = abi.function("ggml_get_data", pointer, pointer)
        self._bytes = abi.function("ggml_nbytes", ctypes.c_size_t, pointer)
        self._flash = abi.function(
            "ggml_flash_attn_ext",
            pointer,
            pointer,
            pointer,
            pointer,
            pointer,
            pointer,
            number,
            number,
            number,
        )
        self._mul_mat = abi.function("ggml_mul_mat", pointer, pointer, pointer, pointer)
        self._soft_max = abi.function("ggml_soft_max_ext", pointer, pointer, pointer, pointer, number, number)
        self._new_graph = abi.function("ggml_new_graph", pointer, pointer)
        self._expand = abi.function("ggml_build_forward_expand", None, pointer, pointer)
        self._compute = abi.function(
            "ggml_graph_compute_with_ctx", ctypes.c_int, pointer, pointer, ctypes.c_int
        )
        abi.function("ggml_cpu_init", None)()
        self._context = abi.function("ggml_init", pointer, _InitParams)(_InitParams(ARENA, None, False))
        if not self._context:
            raise UnsupportedError("ggml has no memory for a trial")
        self._scale = WIDTH**-0.5

    def close(self) -> None:
        """Give the memory back."""
        self._free(self._context)

    def fused(self) -> Any:
        """[WIDTH, HEADS, 1]."""
        q = self._filled(F32, WIDTH, 1, HEADS)
        k, v = self._filled(F16, WIDTH, KEYS, KV_HEADS), self._filled(F16, WIDTH, KEYS, KV_HEADS)
        return self._flash(self._context, q, k, v, None, self._scale, 0.0, 0.0)

    def products(self) -> Any:
        """[WIDTH, 1, HEADS]."""
        q = self._filled(F32, WIDTH, 1, HEADS)
        k, v = self._filled(F16, WIDTH, KEYS, KV_HEADS), self._filled(F16, KEYS, WIDTH, KV_HEADS)
        scores = self._soft_max(self._context, self._mul_mat(self._context, k, q), None, self._scale, 0.0)
        return self._mul_mat(self._context, v, scores)

    def seconds(self, result: Any) -> float:
        """The least of some runs, on one thread."""
        graph = self._new_graph(self._context)
        self._expand(graph, result)
        taken = []
        for _ in range(RUNS):
            begun = time.perf_counter()
            self._compute(self._context, graph, 1)
            taken.append(time.perf_counter() - begun)
        return min(taken)

    def _filled(self, kind: int, *shape: int) -> Any:
        """A tensor of ones in float16, of small numbers in float32: neither is slow to compute with."""
        tensor = self._new(self._context, kind, *shape)
        ctypes.memset(self._data(tensor), 0x3C, self._bytes(tensor))
        return tensor
