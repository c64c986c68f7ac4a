"""How far a model's answers go from what they were when some of its tensors are disturbed.

The model is a file that llama.cpp maps into memory. A disturbance is written into the file, and taken back:
the mapping shows both at once, so that the model is loaded a single time and never as a whole in memory.
The disturbance is rounding to Q4_0 by the importance matrix: the columns that all types take care of must be
taken care of here too, or the model seems far more sensitive than it is.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.checkpoint import GGUFCheckpoint, Stored, StoredTensor, to_float32
from models.ggml_types import GGMLType
from quantize.calibration import Tokens, bundled, from_file, samples
from quantize.errors import NativeFailure
from quantize.ggml import Floats, Ggml
from quantize.measure import Order, Weights, limit
from quantize.tensors import row_ranges

BLOCK = 32
LEVELS = 7
PIECES = 4
"""Of a large tensor so many are disturbed, of those that tensors are read in: the others stay."""
SCORED = 2**25
"""Log-probabilities that are kept: 128 MiB."""


def disturb(order: Order, weights_of: Weights) -> Iterator[tuple[float, dict[str, float]]]:
    """Each group's divergence, and the relative error that each of its tensors had.

    Raises:
        NativeFailure: llama.cpp refused the model.
    """
    path = Path(order.copy)
    with GGUFCheckpoint(path) as checkpoint, _loaded(path, order) as model:
        passages = model.passages(order)
        before = list(model.logs(passages))
        for group in order.groups:
            errors, undo = {}, []
            for name in group:
                stored = checkpoint.tensors[name]
                errors[name], pieces = _disturbed(checkpoint, stored, weights_of(name))
                undo += pieces
            divergence = _divergence(before, model.logs(passages))
            _write(path, undo)
            yield divergence, errors


Piece = tuple[int, npt.NDArray[Any]]
"""Where it belongs in the file, and what was there."""


def _disturbed(
    checkpoint: GGUFCheckpoint, stored: StoredTensor, weights: Floats | None
) -> tuple[float, list[Piece]]:
    """Write a tensor's disturbance into the file.

    Returns:
        The relative error, and what was there before.
    """
    noise = energy = 0.0
    n_rows = 0
    undo: list[Piece] = []
    ggml = Ggml()
    per_expert = stored.n_rows // (1 if weights is None or weights.ndim == 1 else len(weights))
    ranges = list(row_ranges(stored, 1))
    for start, stop in ranges[:: -(-len(ranges) // PIECES)]:
        n_rows += stop - start
        rows = checkpoint.stored_rows(stored.name, start, stop)
        values = to_float32(rows, stored.type)
        experts = np.arange(start, stop) // per_expert
        rough = _encoded(_rounded(ggml, values, weights, experts), stored.type)
        difference = values - to_float32(rough, stored.type)
        shares = _columns(weights, experts)
        noise += float((np.square(difference) * shares).sum(dtype=np.float64))
        energy += float((np.square(values) * shares).sum(dtype=np.float64))
        offset = stored.offset + start * stored.row_bytes
        undo.append((offset, rows))
        _write(checkpoint.path, [(offset, rough)])
    share = n_rows / stored.n_rows
    return share * noise / energy if energy > 0 else 0.0, undo


def _columns(weights: Floats | None, experts: npt.NDArray[np.int64]) -> Floats:
    if weights is None:
        return np.ones((1, 1), np.float32)
    limited = limit(weights)
    return limited[None] if limited.ndim == 1 else limited[experts]


def _rounded(ggml: Ggml, rows: Floats, weights: Floats | None, experts: npt.NDArray[np.int64]) -> Floats:
    """Rows [n, columns] in Q4_0, of each expert by its own weights."""
    if rows.shape[1] % BLOCK:
        return rounded(rows)
    if weights is None or weights.ndim == 1:
        return ggml.rounded(rows, GGMLType.Q4_0, weights)
    parts = [ggml.rounded(rows[experts == i], GGMLType.Q4_0, weights[i]) for i in np.unique(experts)]
    return np.concatenate(parts)


def rounded(rows: Floats) -> Floats:
    """Rows [n, columns] in whole steps of a seventh of each block's largest; a last block may be shorter."""
    n, columns = rows.shape
    padded = np.zeros((n, -(-columns // BLOCK) * BLOCK), np.float32)
    padded[:, :columns] = rows
    blocks = padded.reshape(n, -1, BLOCK)
    step = np.abs(blocks).max(-1, keepdims=True) / LEVELS
    step[step == 0] = 1
    result: Floats = (np.rint(blocks / step) * step).reshape(n, -1)
    return result[:, :columns]


def _encoded(values: Floats, kind: GGMLType) -> Stored:
    if kind is GGMLType.F32:
        return np.ascontiguousarray(values)
    if kind is GGMLType.F16:
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write(path: Path, pieces: Sequence[Piece]) -> None:
    with path.open("rb+") as file:
        for offset, data in pieces:
            file.seek(offset)
            file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)


def _divergence(before: Sequence[Floats], after: Iterator[Floats]) -> float:
    """Mean over tokens of sum p log(p/q)."""
    total, count = 0.0, 0
    for p, q in zip(before, after, strict=True):
        for one, other in zip(p, q, strict=True):
            total += max(0.0, float((np.exp(one) * (one - other)).sum(dtype=np.float64)))
        count += len(p)
    return total / count


class _Model:
    """A model that llama.cpp has mapped; also its tokenizer, as `calibration.samples` wants it."""

    template = None

    def __init__(self, path: Path, order: Order) -> None:
        import llama_cpp as c

        self.c = c
        params = c.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mode = c.LLAMA_LOAD_MODE_MMAP
        params.use_extra_bufts = False  # which would copy the weights
        self.model = c.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise NativeFailure("llama.cpp could not load the model")
        self.vocab = c.llama_model_get_vocab(self.model)
        self.n_vocab = c.llama_vocab_n_tokens(self.vocab)
        context = c.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = order.n_tokens
        context.n_threads = context.n_threads_batch = order.threads
        self.context = c.llama_init_from_model(self.model, context)
        if not self.context:
            raise NativeFailure("llama.cpp could not make a context")

    def close(self) -> None:
        if self.context:
            self.c.llama_free(self.context)
        if self.model:
            self.c.llama_model_free(self.model)

    def passages(self, order: Order) -> Tokens:
        """What it reads: int64 [n_texts, n_tokens]."""
        texts = bundled() if order.calibration is None else from_file(Path(order.calibration))
        return samples(texts, self, count=order.n_texts, length=order.n_tokens).tokens

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text."""
        raw = text.encode("utf-8", "replace")
        ids = (self.c.llama_token * (len(raw) + 16))()
        count: int = self.c.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), special, True)
        if count < 0:
            raise NativeFailure("llama.cpp could not tokenize the text")
        return list(ids[:count])

    def logs(self, passages: Tokens) -> Iterator[Floats]:
        """Log-probabilities of what follows some tokens, passage by passage: float32 [scored, n_vocab]."""
        n_tokens = passages.shape[1]
        scored = max(1, min(n_tokens // 2, SCORED // self.n_vocab // len(passages)))
        positions = np.unique(np.linspace(n_tokens // 4, n_tokens - 1, scored).astype(int))
        for tokens in passages:
            yield self._logs(tokens.tolist(), positions)

    def _logs(self, tokens: Sequence[int], positions: npt.NDArray[np.int64]) -> Floats:
        c = self.c
        c.llama_memory_clear(c.llama_get_memory(self.context), True)
        wanted = set(positions.tolist())
        batch = c.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = i in wanted
            code = c.llama_decode(self.context, batch)
        finally:
            c.llama_batch_free(batch)
        if code != 0:
            raise NativeFailure(f"llama.cpp could not run the model ({code})")
        shape = (len(positions), self.n_vocab)
        logits: Floats = np.ctypeslib.as_array(c.llama_get_logits(self.context), shape=shape).copy()
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
        return logits


@contextmanager
def _loaded(path: Path, order: Order) -> Iterator[_Model]:
    import llama_cpp as c

    @c.llama_log_callback  # type: ignore[untyped-decorator]
    def quiet(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        return

    c.llama_log_set(quiet, ctypes.c_void_p(0))
    model = _Model(path, order)
    try:
        yield model
    finally:
        model.close()
