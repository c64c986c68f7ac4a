"""The one llama_batch of a runtime, in memory that numpy and llama.cpp share."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgechat.runtimes.base import Chunk, Wanted

RC_DONE, RC_NO_ROOM = 0, 1
"""What llama_decode answers; all else is a failure."""


class Batch:
    """Room for `capacity` tokens, each of one sequence."""

    def __init__(self, llama: Any, capacity: int) -> None:
        """Allocate once; nothing is allocated per decode."""
        self._token = np.zeros(capacity, dtype=np.int32)
        self._pos = np.zeros(capacity, dtype=np.int32)
        self._sequence = np.zeros(capacity, dtype=np.int32)
        self._wants = np.zeros(capacity, dtype=np.int8)
        self._one = np.ones(capacity, dtype=np.int32)
        self._steps = np.arange(capacity, dtype=np.int32)
        # For each token a pointer to its list of sequences, which is one number long.
        self._lists = (self._sequence.ctypes.data + 4 * np.arange(capacity)).astype(np.uint64)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self.struct = llama.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(int32_p),
            embd=None,
            pos=self._pos.ctypes.data_as(int32_p),
            n_seq_id=self._one.ctypes.data_as(int32_p),
            seq_id=self._lists.ctypes.data_as(ctypes.POINTER(int32_p)),
            logits=self._wants.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def put(self, at: int, token: int, position: int, sequence: int, wants: bool) -> None:
        """One token."""
        self._token[at] = token
        self._pos[at] = position
        self._sequence[at] = sequence
        self._wants[at] = wants

    def fill(
        self, at: int, tokens: npt.NDArray[np.int32], position: int, sequence: int, wanted: Wanted
    ) -> None:
        """Tokens of one sequence, from `position` on."""
        end = at + len(tokens)
        self._token[at:end] = tokens
        np.add(self._steps[: len(tokens)], position, out=self._pos[at:end])
        self._sequence[at:end] = sequence
        self._wants[at:end] = wanted is Wanted.ALL
        if wanted is Wanted.LAST:
            self._wants[end - 1] = 1


def token_array(tokens: Sequence[int], n_vocab: int) -> npt.NDArray[np.int32]:
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


def cut(batch: Sequence[Chunk], max_rows: int) -> list[list[Chunk]]:
    """The batch cut into batches of at most `max_rows` rows each, in the same order.

    There are fewer chunks than `max_rows`, so that only those that want all rows are cut.
    """
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
