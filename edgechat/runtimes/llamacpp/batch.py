"""The one llama_batch of a runtime, in memory that numpy and llama.cpp share."""

import ctypes
from typing import Any

import numpy as np

from edgechat.runtimes.base import Wanted


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
        self,
        at: int,
        tokens: np.ndarray[Any, np.dtype[np.int32]],
        position: int,
        sequence: int,
        wanted: Wanted,
    ) -> None:
        """Tokens of one sequence, from `position` on."""
        end = at + len(tokens)
        self._token[at:end] = tokens
        np.add(self._steps[: len(tokens)], position, out=self._pos[at:end])
        self._sequence[at:end] = sequence
        self._wants[at:end] = wanted is Wanted.ALL
        if wanted is Wanted.LAST:
            self._wants[end - 1] = 1
