"""What llama.cpp can do from Python at best: its own loop, the peer that the engine is compared to."""

import ctypes
import os
import time
from typing import Any

import numpy as np

from edgechat import hardware
from edgechat.errors import BrokenModelError
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import abi, logs
from edgechat.runtimes.llamacpp.attention import AUTO, ON
from edgechat.runtimes.llamacpp.context import GGML_TYPE
from models.amx import extra_buffers_work

MOST_TOKENS = 512
"""Of a batch; as the engine's."""


class BareLoop:
    """llama_decode and argmax, with llama.cpp's defaults and the engine's type of cache."""

    def __init__(self, settings: LoadSettings) -> None:
        """Load.

        Raises:
            BrokenModelError: llama.cpp can't.
        """
        log = logs.capture()  # starts llama.cpp
        llama: Any = abi.llama()
        self.llama = llama
        params = llama.llama_model_default_params()
        params.n_gpu_layers = settings.n_gpu_layers
        params.use_extra_bufts = extra_buffers_work()
        self.model = llama.llama_model_load_from_file(os.fsencode(settings.path), params)
        if not self.model:
            raise BrokenModelError(f"llama.cpp can't load {settings.path}: {log.last_error()}")
        params = llama.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.type_k = params.type_v = GGML_TYPE[settings.kv_type]
        params.flash_attn_type = AUTO if settings.kv_type == "f16" else ON
        params.n_threads = params.n_threads_batch = settings.n_threads or hardware.physical_cores()
        self.context = llama.llama_init_from_model(self.model, params)
        if not self.context:
            raise BrokenModelError(f"llama.cpp can't make a context: {log.last_error()}")
        vocab = llama.llama_model_get_vocab(self.model)
        self.vocab = vocab
        self.n_vocab = llama.llama_vocab_n_tokens(vocab)
        self.get_logits = abi.function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)

    def decode(self, prompt: str, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens` of a greedy continuation."""
        llama, context = self.llama, self.context
        logits = self._read(self._tokens(prompt))
        token = (ctypes.c_int32 * 1)(int(logits.argmax()))
        batch = llama.llama_batch_get_one(token, 1)
        started = time.perf_counter()
        for _ in range(n_tokens - 1):
            llama.llama_decode(context, batch)
            self.get_logits(context)
            token[0] = int(logits.argmax())
        return time.perf_counter() - started

    def prefill(self, text: str, n_tokens: int) -> float:
        """Seconds for a prompt of so many tokens."""
        tokens = self._tokens(text)
        tokens = (tokens * (n_tokens // len(tokens) + 1))[:n_tokens]
        started = time.perf_counter()
        self._read(tokens)
        return time.perf_counter() - started

    def _read(self, tokens: list[int]) -> Any:
        """Decode a prompt from an empty cache: the last token's logits, as long as it is the last batch."""
        llama, context = self.llama, self.context
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        for at in range(0, len(tokens), MOST_TOKENS):
            part = tokens[at : at + MOST_TOKENS]
            array = (ctypes.c_int32 * len(part))(*part)
            if llama.llama_decode(context, llama.llama_batch_get_one(array, len(part))):
                raise BrokenModelError("llama.cpp can't decode the prompt")
        row = (ctypes.c_float * self.n_vocab).from_address(self.get_logits(context))
        return np.ctypeslib.as_array(row)

    def _tokens(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (ctypes.c_int32 * (len(data) + 1))()
        n = self.llama.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), True, False)
        return list(tokens[:n])

    def close(self) -> None:
        """Free it."""
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)
