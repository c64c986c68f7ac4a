"""llama.cpp through its plainest calls: what it makes of a file's tokens and weights."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp as c
import numpy as np


@c.llama_log_callback
def _quiet(level: int, text: bytes, user: ctypes.c_void_p) -> None:
    pass


class Reference:
    """A model in float32 arithmetic wherever llama.cpp leaves the choice."""

    def __init__(self, path: Path, n_ctx: int) -> None:
        c.llama_log_set(_quiet, ctypes.c_void_p(0))
        model = c.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(str(path).encode(), model)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = c.llama_model_get_vocab(self.model)
        self.n_vocab = c.llama_vocab_n_tokens(self.vocab)
        context = c.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = n_ctx
        context.n_threads = context.n_threads_batch = 1
        context.type_k = context.type_v = 0  # float32
        context.flash_attn_type = 0
        self.context = c.llama_init_from_model(self.model, context)
        assert self.context

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [len(ids), n_vocab], of a fresh sequence."""
        c.llama_memory_clear(c.llama_get_memory(self.context), True)
        batch = c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert c.llama_decode(self.context, batch) == 0
        rows = np.ctypeslib.as_array(c.llama_get_logits(self.context), shape=(len(ids), self.n_vocab)).copy()
        c.llama_batch_free(batch)
        return rows

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids."""
        raw = text.encode()
        ids = (c.llama_token * (len(raw) + 16))()
        n = c.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), add_special, parse_special)
        assert n >= 0
        return list(ids[:n])

    def is_eog(self, token: int) -> bool:
        """Whether a token ends the model's turn."""
        return bool(c.llama_vocab_is_eog(self.vocab, token))

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        pieces = b""
        for token in ids:
            buffer = ctypes.create_string_buffer(256)
            n = c.llama_token_to_piece(self.vocab, token, buffer, 256, 0, True)
            assert n >= 0
            pieces += buffer.raw[:n]
        return pieces.decode("utf-8", "replace")


@contextmanager
def loaded(path: Path, n_ctx: int = 512) -> Iterator[Reference]:
    """A model, freed afterwards."""
    reference = Reference(path, n_ctx)
    try:
        yield reference
    finally:
        c.llama_free(reference.context)
        c.llama_model_free(reference.model)
