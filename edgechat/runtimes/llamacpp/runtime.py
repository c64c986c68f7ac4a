"""`Runtime` on llama.cpp: batches of tokens in, logits out, sequences in one shared KV cache."""

import ctypes
from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from edgechat.library.estimate import outputs_max
from edgechat.records import Capabilities, LoadSettings, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits, Wanted
from edgechat.runtimes.llamacpp import abi, logs, state
from edgechat.runtimes.llamacpp.batch import RC_DONE, RC_NO_ROOM, Batch, cut, token_array
from edgechat.runtimes.llamacpp.cache import UNKNOWN, Cache
from edgechat.runtimes.llamacpp.describe import describe
from edgechat.runtimes.llamacpp.fingerprint import fingerprint
from edgechat.runtimes.llamacpp.load import Opened, Progress, open_model
from edgechat.runtimes.llamacpp.tokenizer import LlamaCppTokenizer


class LlamaCppRuntime:
    """A GGUF model and its KV cache. Not for use by two threads at once; the tokenizer is.

    Further than the interface it has `notes`, which say how loading differed from what was asked, and
    `can_truncate`.
    """

    info: ModelInfo
    can: Capabilities
    tokenizer: LlamaCppTokenizer
    n_ctx: int
    n_batch: int
    n_sequences: int
    notes: tuple[str, ...]
    settings: LoadSettings
    """What it was loaded with: where memory was short, less than was asked for."""

    @classmethod
    def load(cls, settings: LoadSettings, on_progress: Progress | None = None) -> "LlamaCppRuntime":
        """Load a model that `models.verify` has found sound.

        Args:
            settings: what to load, and how.
            on_progress: told how far loading has come, 0 to 1; False ends it.

        Raises:
            NotFoundError: no such file, or it can't be read.
            BrokenModelError: llama.cpp can't make sense of it.
            ResourceError: not enough memory; the message has the numbers.
            UnsupportedError: not a model for text, or llama.cpp of another version.
            LoadCancelled: `on_progress` answered False.
        """
        opened = open_model(settings, on_progress)
        try:
            return cls(opened.settings, opened, fingerprint(Path(settings.path)))
        except BaseException:
            opened.close()
            raise

    def __init__(self, settings: LoadSettings, opened: Opened, identity: str) -> None:
        """Take over what `open_model` gave; `load` is the way in."""
        llama: Any = abi.llama()
        self._llama = llama
        self._opened: Opened | None = opened
        self._ctx = opened.context
        self._decode = llama.llama_decode
        self._get_logits = abi.function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)
        self.notes = opened.notes
        self.settings = settings
        self.tokenizer = LlamaCppTokenizer(opened.model, opened.text_tokens)
        self.n_ctx = llama.llama_n_ctx(self._ctx)
        self.n_batch = llama.llama_n_batch(self._ctx)
        self.n_sequences = settings.n_sequences
        self._n_vocab = self.tokenizer.n_vocab
        self._max_rows = outputs_max(self._n_vocab, self.n_batch, settings.n_sequences + 1)
        self._batch = Batch(llama, self.n_batch)
        filler = self.tokenizer.bos_id or 0
        self._cache = Cache(opened.model, self._ctx, settings.n_sequences, self._batch, filler)
        self.can = self._cache.can
        self._no_rows: Logits = np.empty((0, self._n_vocab), dtype=np.float32)
        self._views: dict[int, Logits] = {}
        self._views_at = 0
        self.info = describe(
            settings, opened, n_ctx=self.n_ctx, can=self.can, tokenizer=self.tokenizer, fingerprint=identity
        )
        versions = f"{abi.installed_version()} {llama.llama_version().decode()}"
        layout = f"kv={settings.kv_type}{' turned' if opened.values_turned else ''} swa_full unified"
        self._key = state.StateKey(identity, f"{versions} {layout}")

    def decode(self, batch: Sequence[Chunk]) -> Logits:
        """Append each chunk to its sequence; at most `n_batch` tokens in all, a sequence at most once.

        Returns:
            float32 [rows, n_vocab], a view of llama.cpp's memory: valid until the next call of `decode`.

        Raises:
            ContextFull: no room; the cache is as before.
            DecodeFailed: anything else; free the batch's sequences.
            ValueError: not a batch that the interface allows; the cache is as before.
        """
        lengths, native = self._cache.lengths, self._batch
        n = rows = seen = 0
        for chunk in batch:
            sequence, tokens = chunk.sequence, chunk.tokens
            if sequence >= self.n_sequences or seen >> sequence & 1 or chunk.start != lengths[sequence]:
                self._refuse(chunk, twice=sequence < self.n_sequences and bool(seen >> sequence & 1))
            seen |= 1 << sequence
            count = len(tokens)
            if n + count > self.n_batch:
                raise ValueError(f"more than {self.n_batch} tokens in a batch")
            if count == 1:
                token = index(tokens[0])
                if not 0 <= token < self._n_vocab:
                    raise ValueError(f"no token {token}: the vocabulary has {self._n_vocab}")
                wants = chunk.logits is not Wanted.NONE
                native.put(n, token, chunk.start, sequence, wants)
                rows += wants
            else:
                native.fill(n, token_array(tokens, self._n_vocab), chunk.start, sequence, chunk.logits)
                rows += chunk.n_rows
            n += count
        if n == 0:
            raise ValueError("an empty batch")
        if rows > self._max_rows:
            return self._decode_in_parts(batch, rows)

        native.struct.n_tokens = n
        rc = self._decode(self._ctx, native.struct)
        if rc != RC_DONE:
            self._fail(rc, batch)
        self._cache.shifted = False
        for chunk in batch:
            lengths[chunk.sequence] += len(chunk.tokens)
        if rows == 0:
            self._llama.llama_synchronize(self._ctx)  # a GPU may still be at it
            return self._no_rows
        return self._rows(rows)

    def length(self, sequence: int) -> int:
        """Tokens that the sequence holds.

        Raises:
            ValueError: no such sequence, or it must be freed after a failed decode.
        """
        return self._cache.length(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all after the first `length` tokens.

        Raises:
            ValueError: more than there are, or further back than `can_truncate` says.
        """
        self._cache.truncate(sequence, length)

    def can_truncate(self, sequence: int, length: int) -> bool:
        """Whether `truncate` to this length is possible and exact.

        Where `can.rollback` is -1 it is, with one exception: llama.cpp saves of a layer with a sliding
        window only the window, so that a restored sequence can't go back past it.

        Raises:
            ValueError: no such sequence, or it must be freed after a failed decode.
        """
        return self._cache.can_truncate(sequence, length)

    def evict(self, sequence: int, start: int, stop: int) -> None:
        """Forget tokens [start, stop) and close the gap.

        Raises:
            ValueError: not `can.shift`, not inside the sequence, or its window layers have let go of what
                would come into view again (a restored sequence).
            ContextFull: the tokens after `stop` are shared with a fork, and there is no room to copy them.
        """
        self._cache.evict(sequence, start, stop)

    def fork(self, parent: int, child: int, length: int) -> None:
        """Make `child` the first `length` tokens of `parent`, sharing their cells; what it held is gone.

        Raises:
            ValueError: not `can.fork`, more than there are, or the same sequence.
        """
        self._cache.fork(parent, child, length)

    def free(self, sequence: int) -> None:
        """Forget the whole sequence; the one thing allowed after a failed decode.

        Raises:
            ValueError: no such sequence.
        """
        self._cache.free(sequence)

    def export_state(self, sequence: int) -> bytes:
        """The sequence's cells, to be imported under the same model and settings only.

        Raises:
            ValueError: the sequence is empty.
            DecodeFailed: llama.cpp can't save it.
        """
        length = self._cache.length(sequence)
        if length == 0:
            raise ValueError(f"sequence {sequence} is empty: there is nothing to save")
        buffer = self._cache.save(sequence, state.HEADER.size)
        state.pack(self._key, length, buffer)
        return bytes(buffer)

    def import_state(self, sequence: int, state_bytes: bytes) -> None:
        """Restore what `export_state` gave.

        Raises:
            ValueError: the state is damaged or foreign; the sequence is empty then.
            ContextFull: no room for it; the sequence is empty then.
        """
        self._cache.free(sequence)
        n_tokens, blob = state.unpack(self._key, state_bytes)
        self._cache.restore(sequence, blob)
        if self._cache.native_length(sequence) != n_tokens:
            self._cache.free(sequence)
            raise ValueError("a damaged saved state")
        self._cache.lengths[sequence] = n_tokens

    def set_threads(self, n_decode: int, n_prefill: int) -> None:
        """Threads for single tokens and for batches.

        Raises:
            ValueError: fewer than one, or more than llama.cpp takes (512).
        """
        if not (1 <= n_decode <= 512 and 1 <= n_prefill <= 512):
            raise ValueError(f"{n_decode} and {n_prefill} threads: give 1 to 512")
        if self._opened is None:
            raise ValueError("the runtime is closed")
        self._llama.llama_set_n_threads(self._ctx, n_decode, n_prefill)

    def close(self) -> None:
        """Free the model and the cache. The last logits and the tokenizer are dead after it."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            self.n_sequences = self._cache.n_sequences = 0
            self._views.clear()
            opened.close()

    def _rows(self, rows: int) -> Logits:
        """The first rows of llama.cpp's output buffer, without a copy."""
        address = self._get_logits(self._ctx)
        if address != self._views_at:  # the buffer was moved, or is new
            self._views.clear()
            self._views_at = address
        view = self._views.get(rows)
        if view is None:
            memory = (ctypes.c_float * (rows * self._n_vocab)).from_address(address)
            view = np.ctypeslib.as_array(memory).reshape(rows, self._n_vocab)
            self._views[rows] = view
        return view

    def _decode_in_parts(self, batch: Sequence[Chunk], rows: int) -> Logits:
        """A batch that wants more rows than llama.cpp's output buffer has: parts of it, one by one."""
        before = {chunk.sequence: chunk.start for chunk in batch}
        lengths = self._cache.lengths
        logits = np.empty((rows, self._n_vocab), dtype=np.float32)
        done = 0
        try:
            for part in cut(batch, self._max_rows):
                some = self.decode(part)
                logits[done : done + len(some)] = some
                done += len(some)
        except ContextFull:
            for sequence, length in before.items():
                try:
                    self.truncate(sequence, length)
                except ValueError:
                    lengths[sequence] = UNKNOWN
            if any(lengths[sequence] == UNKNOWN for sequence in before):
                raise DecodeFailed("the context is full, and this model can't go back") from None
            raise
        except DecodeFailed:
            for sequence in before:
                lengths[sequence] = UNKNOWN
            raise
        return logits

    def _fail(self, rc: int, batch: Sequence[Chunk]) -> NoReturn:
        if rc == RC_NO_ROOM:
            raise ContextFull
        for chunk in batch:
            self._cache.lengths[chunk.sequence] = UNKNOWN
        reason = logs.capture().last_error()
        raise DecodeFailed(f"llama.cpp could not decode ({rc}): {reason}".removesuffix(": "))

    def _refuse(self, chunk: Chunk, *, twice: bool) -> NoReturn:
        length = self._cache.length(chunk.sequence)
        if twice:
            raise ValueError(f"sequence {chunk.sequence} is in the batch twice")
        raise ValueError(
            f"sequence {chunk.sequence} has {length} tokens: a chunk can't start at {chunk.start}"
        )
