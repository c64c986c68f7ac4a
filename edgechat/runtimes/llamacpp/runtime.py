"""`Runtime` on llama.cpp: batches of tokens in, logits out, sequences in one shared KV cache.

Every precondition is checked here in Python: what llama.cpp doesn't allow it answers with abort().
"""

import ctypes
from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from edgechat.records import Capabilities, LoadSettings, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits, Wanted
from edgechat.runtimes.llamacpp import abi, logs, state
from edgechat.runtimes.llamacpp.batch import Batch
from edgechat.runtimes.llamacpp.describe import describe
from edgechat.runtimes.llamacpp.fingerprint import fingerprint
from edgechat.runtimes.llamacpp.load import Opened, Progress, open_model, outputs_max
from edgechat.runtimes.llamacpp.sharing import Sharing
from edgechat.runtimes.llamacpp.tokenizer import LlamaCppTokenizer

RC_DONE, RC_NO_ROOM = 0, 1
UNKNOWN = -1
"""Length of a sequence after a failed decode: nothing but `free` is allowed."""


class LlamaCppRuntime:
    """A GGUF model and its KV cache. Not for use by two threads at once; the tokenizer is.

    Further than the interface it has `notes`, which say how loading differed from what was asked.
    """

    info: ModelInfo
    can: Capabilities
    tokenizer: LlamaCppTokenizer
    n_ctx: int
    n_batch: int
    n_sequences: int
    notes: tuple[str, ...]

    @classmethod
    def load(cls, settings: LoadSettings, on_progress: Progress | None = None) -> "LlamaCppRuntime":
        """Load a model that `models verify` has found sound.

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
            identity = fingerprint(Path(settings.path))
            return cls(settings, opened, identity)
        except BaseException:
            opened.close()
            raise

    def __init__(self, settings: LoadSettings, opened: Opened, identity: str) -> None:
        """Take over what `open_model` gave; `load` is the way in."""
        llama: Any = abi.llama()
        self._llama = llama
        self._opened: Opened | None = opened
        self._ctx = opened.context
        self._memory = llama.llama_get_memory(opened.context)
        self._decode = llama.llama_decode
        self._get_logits = abi.function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)
        self.notes = opened.notes
        self.tokenizer = LlamaCppTokenizer(opened.model, opened.text_tokens)
        self.n_ctx = llama.llama_n_ctx(self._ctx)
        self.n_batch = llama.llama_n_batch(self._ctx)
        self.n_sequences = settings.n_sequences
        self._spare = settings.n_sequences
        self._n_vocab = self.tokenizer.n_vocab
        self._max_rows = outputs_max(self._n_vocab, self.n_batch, settings.n_sequences + 1)
        self._batch = Batch(llama, self.n_batch)
        self._lengths = [0] * settings.n_sequences
        self._sharing = Sharing()
        self._shifted = False
        self._no_rows: Logits = np.empty((0, self._n_vocab), dtype=np.float32)
        self._views: dict[int, Logits] = {}
        self._views_at = 0
        self._n_swa: int = llama.llama_model_n_swa(opened.model)
        self.can = self._capabilities(opened.model)
        self.info = describe(
            settings, opened, n_ctx=self.n_ctx, can=self.can, tokenizer=self.tokenizer, fingerprint=identity
        )
        versions = f"{abi.installed_version()} {llama.llama_version().decode()}"
        self._key = state.StateKey(identity, f"{versions} kv={settings.kv_type} swa_full unified")

    def decode(self, batch: Sequence[Chunk]) -> Logits:
        """Append each chunk to its sequence; at most `n_batch` tokens in all, a sequence at most once.

        Returns:
            float32 [rows, n_vocab], a view of llama.cpp's memory: valid until the next call of any method.

        Raises:
            ContextFull: no room; the cache is as before.
            DecodeFailed: anything else; free the batch's sequences.
            ValueError: not a batch that the interface allows; the cache is as before.
        """
        lengths, native = self._lengths, self._batch
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
                native.fill(n, _token_array(tokens, self._n_vocab), chunk.start, sequence, chunk.logits)
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
        self._shifted = False
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
        return self._known(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all after the first `length` tokens.

        Raises:
            ValueError: more than there are, or further back than `can_truncate` says.
        """
        current = self._known(sequence)
        if not 0 <= length <= current:
            raise ValueError(f"sequence {sequence} has {current} tokens: it can't be cut to {length}")
        if length == current:
            return
        if length == 0:
            self.free(sequence)
            return
        if not self.can_truncate(sequence, length):
            raise ValueError(f"sequence {sequence} can't go back from {current} to {length} tokens")
        if not self._llama.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise ValueError(f"sequence {sequence} can't go back from {current} to {length} tokens")
        self._sharing.truncate(sequence, length)
        self._lengths[sequence] = length

    def can_truncate(self, sequence: int, length: int) -> bool:
        """Whether `truncate` to this length is possible and exact.

        Where `can.rollback` is -1 it is, with one exception: llama.cpp saves of a layer with a sliding
        window only the window, so that a restored sequence can't go back past it.
        """
        current = self._known(sequence)
        if length in (0, current):
            return True
        if self.can.rollback >= 0 and current - length > self.can.rollback:
            return False
        return self._holds_window(sequence, length)

    def evict(self, sequence: int, start: int, stop: int) -> None:
        """Forget tokens [start, stop) and close the gap.

        Raises:
            ValueError: not `can.shift`, not inside the sequence, or its window layers have let go of what
                would come into view again (a restored sequence).
            ContextFull: the tokens after `stop` are shared with a fork, and there is no room to copy them.
        """
        length = self._known(sequence)
        if not 0 <= start <= stop <= length:
            raise ValueError(f"sequence {sequence} has {length} tokens: no {start} to {stop} in it")
        if not self.can.shift:
            raise ValueError("this model's cache can't be shifted")
        if start == stop:
            return
        if stop == length:
            self.truncate(sequence, start)
            return
        kept = length - (stop - start)
        if kept - self._n_swa < start and not self._holds_window(sequence, kept):
            raise ValueError(f"sequence {sequence} no longer holds what its window would show again")
        if self._sharing.shared(sequence) > stop:
            self._unshare(sequence)
        self._llama.llama_memory_seq_rm(self._memory, sequence, start, stop)
        self._llama.llama_memory_seq_add(self._memory, sequence, stop, -1, start - stop)
        self._shifted = True
        self._sharing.truncate(sequence, start)
        self._lengths[sequence] = kept

    def fork(self, parent: int, child: int, length: int) -> None:
        """Make `child` the first `length` tokens of `parent`, sharing their cells; what it held is gone.

        Raises:
            ValueError: not `can.fork`, more than there are, or the same sequence.
        """
        current = self._known(parent)
        self._exists(child)
        if not self.can.fork:
            raise ValueError("this model's sequences can't be forked")
        if parent == child or not 0 <= length <= current:
            raise ValueError(
                f"sequence {child} can't become the first {length} of {current} tokens of {parent}"
            )
        if length != current and not self._holds_window(parent, length):
            raise ValueError(f"sequence {parent} no longer holds all that {length} tokens' window shows")
        self.free(child)
        if length:
            self._llama.llama_memory_seq_cp(self._memory, parent, child, 0, length)
            self._sharing.fork(parent, child, length)
            self._lengths[child] = length

    def free(self, sequence: int) -> None:
        """Forget the whole sequence; the one thing allowed after a failed decode.

        Raises:
            ValueError: no such sequence.
        """
        self._exists(sequence)
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._sharing.free(sequence)
        self._lengths[sequence] = 0

    def export_state(self, sequence: int) -> bytes:
        """The sequence's cells, to be imported under the same model and settings only.

        Raises:
            ValueError: the sequence is empty.
        """
        length = self._known(sequence)
        if length == 0:
            raise ValueError(f"sequence {sequence} is empty: there is nothing to save")
        buffer = self._save(sequence, state.HEADER.size)
        state.pack(self._key, length, buffer)
        return bytes(buffer)

    def import_state(self, sequence: int, state_bytes: bytes) -> None:
        """Restore what `export_state` gave.

        Raises:
            ValueError: the state is damaged or foreign; the sequence is empty then.
            ContextFull: no room for it; the sequence is empty then.
        """
        self.free(sequence)
        n_tokens, blob = state.unpack(self._key, state_bytes)
        if not self._restore(sequence, blob):
            if any("available cells" in line or "not enough cells" in line for line in logs.capture().lines):
                raise ContextFull
            raise ValueError("a damaged saved state")
        if self._native_length(sequence) != n_tokens:
            self.free(sequence)
            raise ValueError("a damaged saved state")
        self._lengths[sequence] = n_tokens

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
            self.n_sequences, self._lengths, self._ctx = 0, [], 0
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
        logits = np.empty((rows, self._n_vocab), dtype=np.float32)
        done = 0
        try:
            for part in _parts(batch, self._max_rows):
                some = self.decode(part)
                logits[done : done + len(some)] = some
                done += len(some)
        except ContextFull:
            for sequence, length in before.items():
                try:
                    self.truncate(sequence, length)
                except ValueError:
                    self._lengths[sequence] = UNKNOWN
            if UNKNOWN in (self._lengths[sequence] for sequence in before):
                raise DecodeFailed("the context is full, and this model can't go back") from None
            raise
        except DecodeFailed:
            for sequence in before:
                self._lengths[sequence] = UNKNOWN
            raise
        return logits

    def _fail(self, rc: int, batch: Sequence[Chunk]) -> NoReturn:
        if rc == RC_NO_ROOM:
            raise ContextFull
        for chunk in batch:
            self._lengths[chunk.sequence] = UNKNOWN
        reason = logs.capture().last_error()
        raise DecodeFailed(f"llama.cpp could not decode ({rc}): {reason}".removesuffix(": "))

    def _refuse(self, chunk: Chunk, *, twice: bool) -> NoReturn:
        length = self._known(chunk.sequence)
        if twice:
            raise ValueError(f"sequence {chunk.sequence} is in the batch twice")
        raise ValueError(
            f"sequence {chunk.sequence} has {length} tokens: a chunk can't start at {chunk.start}"
        )

    def _exists(self, sequence: int) -> None:
        if not 0 <= sequence < self.n_sequences:
            raise ValueError(f"no sequence {sequence}: there are {self.n_sequences}")

    def _known(self, sequence: int) -> int:
        """The sequence's length."""
        self._exists(sequence)
        length = self._lengths[sequence]
        if length == UNKNOWN:
            raise ValueError(f"sequence {sequence} must be freed: its decode has failed")
        return length

    def _native_length(self, sequence: int) -> int:
        return int(self._llama.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def _holds_window(self, sequence: int, length: int) -> bool:
        """Whether the window layers still have every cell that the token after `length` would look at.

        llama.cpp itself would answer, from the wrong context and without a word.
        """
        if self._n_swa <= 0 or length == 0:
            return True
        oldest = self._llama.llama_memory_seq_pos_min(self._memory, sequence)
        return bool(0 <= oldest <= max(0, length - self._n_swa))

    def _unshare(self, sequence: int) -> None:
        """Give the sequence cells of its own, by way of the spare sequence.

        Raises:
            ContextFull: no room; nothing has changed.
        """
        if not self._restore(self._spare, self._save(sequence, 0)):
            raise ContextFull
        rm, cp = self._llama.llama_memory_seq_rm, self._llama.llama_memory_seq_cp
        rm(self._memory, sequence, -1, -1)
        cp(self._memory, self._spare, sequence, -1, -1)
        rm(self._memory, self._spare, -1, -1)
        self._sharing.free(sequence)

    def _save(self, sequence: int, offset: int) -> bytearray:
        """llama.cpp's bytes of a sequence, after `offset` bytes left free."""
        self._apply_shift()
        size = self._llama.llama_state_seq_get_size(self._ctx, sequence)
        buffer = bytearray(offset + size)
        target = (ctypes.c_uint8 * size).from_buffer(buffer, offset)
        written = self._llama.llama_state_seq_get_data(self._ctx, target, size, sequence)
        if written != size:
            raise DecodeFailed(f"llama.cpp could not save sequence {sequence}: {logs.capture().last_error()}")
        return buffer

    def _restore(self, sequence: int, blob: bytearray | memoryview) -> bool:
        """Whether llama.cpp could restore the sequence; it is empty if not."""
        logs.capture().clear()
        source = np.frombuffer(blob, dtype=np.uint8)
        pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if self._llama.llama_state_seq_set_data(self._ctx, pointer, len(source), sequence) > 0:
            return True
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)  # window layers may be half done
        return False

    def _apply_shift(self) -> None:
        """Rotate the keys that `evict` has moved.

        llama.cpp does so at the next decode, but saves positions and keys as they are: a state saved in
        between would be wrong for good. So decode a token in the spare sequence; the keys are rotated even
        if there is no room for it.
        """
        if not self._shifted:
            return
        self._batch.put(0, self.tokenizer.bos_id or 0, 0, self._spare, wants=False)
        self._batch.struct.n_tokens = 1
        rc = self._decode(self._ctx, self._batch.struct)
        self._llama.llama_memory_seq_rm(self._memory, self._spare, -1, -1)
        if rc not in (RC_DONE, RC_NO_ROOM):
            raise DecodeFailed(f"llama.cpp could not shift the cache ({rc}): {logs.capture().last_error()}")
        self._shifted = False

    def _capabilities(self, model: int) -> Capabilities:
        """What this model's cache can do.

        A recurrent state can't be cut or shared at any length, and remembers what was evicted from the
        attention layers beside it: such models get neither.
        """
        recurrent = self._llama.llama_model_is_recurrent(model) or self._llama.llama_model_is_hybrid(model)
        shift = bool(self._llama.llama_memory_can_shift(self._memory)) and not recurrent
        plain = shift or self._can_roll_back()
        return Capabilities(shift=shift, rollback=-1 if plain else 0, fork=plain and not recurrent)

    def _can_roll_back(self) -> bool:
        """Try it: two tokens in, one out."""
        for position in range(2):
            self._batch.put(position, self.tokenizer.bos_id or 0, position, self._spare, wants=False)
        self._batch.struct.n_tokens = 2
        if self._decode(self._ctx, self._batch.struct) != RC_DONE:
            return False
        possible = bool(self._llama.llama_memory_seq_rm(self._memory, self._spare, 1, -1))
        self._llama.llama_memory_seq_rm(self._memory, self._spare, -1, -1)
        return possible


def _token_array(tokens: Sequence[int], n_vocab: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Tokens as int32.

    Raises:
        ValueError: not integers, or outside the vocabulary.
    """
    array = np.asarray(tokens)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError("tokens must be integers")
    if array.min() < 0 or array.max() >= n_vocab:
        raise ValueError(f"a token outside the vocabulary of {n_vocab}")
    return array.astype(np.int32, copy=False)


def _parts(batch: Sequence[Chunk], max_rows: int) -> list[list[Chunk]]:
    """The batch cut into batches of at most `max_rows` rows each, in the same order."""
    parts: list[list[Chunk]] = [[]]
    left = max_rows
    for chunk in batch:
        done, count = 0, len(chunk.tokens)
        while done < count:
            if left == 0:
                parts.append([])
                left = max_rows
            take = min(count - done, left) if chunk.logits is Wanted.ALL else count
            piece = Chunk(chunk.sequence, chunk.tokens[done : done + take], chunk.start + done, chunk.logits)
            parts[-1].append(piece)
            left -= piece.n_rows
            done += take
    return parts
