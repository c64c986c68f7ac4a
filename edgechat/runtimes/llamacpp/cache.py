"""The KV cache of a context: what each sequence holds, and how to cut, shift, share and save it.

Every precondition is checked here in Python: what llama.cpp doesn't allow it answers with abort().
"""

import ctypes
from typing import Any

import numpy as np

from edgechat.records import Capabilities
from edgechat.runtimes.base import ContextFull, DecodeFailed
from edgechat.runtimes.llamacpp import abi, logs
from edgechat.runtimes.llamacpp.batch import RC_DONE, RC_NO_ROOM, Batch
from edgechat.runtimes.llamacpp.sharing import Sharing

UNKNOWN = -1
"""Length of a sequence after a failed decode: nothing but `free` is allowed."""


class Cache:
    """Sequences 0 .. n_sequences-1, and a spare one for our own use.

    `lengths` is llama.cpp's own count, kept here because asking costs more than a token's bookkeeping. Who
    decodes adds to it, and sets `shifted` to False.
    """

    def __init__(self, model: int, context: int, n_sequences: int, batch: Batch, filler: int) -> None:
        """Take the cache of a context that has room for `n_sequences` + 1.

        Args:
            model: llama.cpp's pointer.
            context: llama.cpp's pointer.
            n_sequences: how many can be used.
            batch: may be overwritten whenever a method runs.
            filler: any token.
        """
        self._llama: Any = abi.llama()
        self._ctx = context
        self._memory = self._llama.llama_get_memory(context)
        self._batch = batch
        self._filler = filler
        self._spare = n_sequences
        self._n_swa: int = self._llama.llama_model_n_swa(model)
        self._sharing = Sharing()
        self.n_sequences = n_sequences
        self.lengths = [0] * n_sequences
        self.shifted = False
        self.can = self._capabilities(model)

    def exists(self, sequence: int) -> None:
        """Refuse what is no sequence.

        Raises:
            ValueError: no such sequence.
        """
        if not 0 <= sequence < self.n_sequences:
            raise ValueError(f"no sequence {sequence}: there are {self.n_sequences}")

    def length(self, sequence: int) -> int:
        """Tokens that the sequence holds.

        Raises:
            ValueError: no such sequence, or it must be freed after a failed decode.
        """
        self.exists(sequence)
        length = self.lengths[sequence]
        if length == UNKNOWN:
            raise ValueError(f"sequence {sequence} must be freed: its decode has failed")
        return length

    def native_length(self, sequence: int) -> int:
        """The same, by llama.cpp's count."""
        return int(self._llama.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def can_truncate(self, sequence: int, length: int) -> bool:
        """Whether `truncate` to this length is possible and exact."""
        current = self.length(sequence)
        if length in (0, current):
            return True
        if self.can.rollback >= 0 and current - length > self.can.rollback:
            return False
        return self._holds_window(sequence, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all after the first `length` tokens."""
        current = self.length(sequence)
        if not 0 <= length <= current:
            raise ValueError(f"sequence {sequence} has {current} tokens: it can't be cut to {length}")
        if length == current:
            return
        if length == 0:
            self.free(sequence)
            return
        if not self.can_truncate(sequence, length) or not self._rm(sequence, length, -1):
            raise ValueError(f"sequence {sequence} can't go back from {current} to {length} tokens")
        self._sharing.truncate(sequence, length)
        self.lengths[sequence] = length

    def evict(self, sequence: int, start: int, stop: int) -> None:
        """Forget tokens [start, stop) and close the gap."""
        length = self.length(sequence)
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
        self._rm(sequence, start, stop)
        self._llama.llama_memory_seq_add(self._memory, sequence, stop, -1, start - stop)
        self.shifted = True
        self._sharing.truncate(sequence, start)
        self.lengths[sequence] = kept

    def fork(self, parent: int, child: int, length: int) -> None:
        """Make `child` the first `length` tokens of `parent`, sharing their cells."""
        current = self.length(parent)
        self.exists(child)
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
            self.lengths[child] = length

    def free(self, sequence: int) -> None:
        """Forget the whole sequence."""
        self.exists(sequence)
        self._rm(sequence, -1, -1)
        self._sharing.free(sequence)
        self.lengths[sequence] = 0

    def save(self, sequence: int, offset: int = 0) -> bytearray:
        """llama.cpp's bytes of a sequence, after `offset` bytes left free."""
        self._apply_shift()
        size = self._llama.llama_state_seq_get_size(self._ctx, sequence)
        buffer = bytearray(offset + size)
        target = (ctypes.c_uint8 * size).from_buffer(buffer, offset)
        written = self._llama.llama_state_seq_get_data(self._ctx, target, size, sequence)
        if written != size:
            raise DecodeFailed(f"llama.cpp could not save sequence {sequence}: {logs.capture().last_error()}")
        return buffer

    def restore(self, sequence: int, blob: bytearray | memoryview) -> None:
        """Make an empty sequence what `save` gave.

        Raises:
            ContextFull: no room; it is still empty.
            ValueError: llama.cpp refuses these bytes; it is still empty.
        """
        log = logs.capture()
        log.clear()
        source = np.frombuffer(blob, dtype=np.uint8)
        pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if self._llama.llama_state_seq_set_data(self._ctx, pointer, len(source), sequence) > 0:
            return
        self._rm(sequence, -1, -1)  # of two caches one may be done
        if any("available cells" in line or "not enough cells" in line for line in log.lines):
            raise ContextFull
        raise ValueError("a damaged saved state")

    def _rm(self, sequence: int, start: int, stop: int) -> bool:
        return bool(self._llama.llama_memory_seq_rm(self._memory, sequence, start, stop))

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
        self.restore(self._spare, self.save(sequence))
        self._rm(sequence, -1, -1)
        self._llama.llama_memory_seq_cp(self._memory, self._spare, sequence, -1, -1)
        self._rm(self._spare, -1, -1)
        self._sharing.free(sequence)

    def _apply_shift(self) -> None:
        """Rotate the keys that `evict` has moved.

        llama.cpp does so at the next decode, but saves positions and keys as they are: a state saved in
        between would be wrong for good. So decode a token in the spare sequence; the keys are rotated even
        if there is no room for it.
        """
        if not self.shifted:
            return
        rc = self._decode_spare(1)
        self._rm(self._spare, -1, -1)
        if rc not in (RC_DONE, RC_NO_ROOM):
            raise DecodeFailed(f"llama.cpp could not shift the cache ({rc}): {logs.capture().last_error()}")
        self.shifted = False

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
        if self._decode_spare(2) != RC_DONE:
            return False
        possible = self._rm(self._spare, 1, -1)
        self._rm(self._spare, -1, -1)
        return possible

    def _decode_spare(self, count: int) -> int:
        """Decode so many tokens in the empty spare sequence; llama.cpp's return code."""
        for position in range(count):
            self._batch.put(position, self._filler, position, self._spare, wants=False)
        self._batch.struct.n_tokens = count
        return int(self._llama.llama_decode(self._ctx, self._batch.struct))
