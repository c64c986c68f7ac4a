"""The runtime's interface: what turns tokens into logits. All else is the engine's.

A runtime is a loaded model that decodes batches of tokens against a KV cache that it owns. The cache
holds sequences, numbered from 0; a sequence is the list of tokens decoded so far, at positions 0, 1, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgechat.records import Capabilities, ModelInfo

Logits = npt.NDArray[np.float32]


class Wanted(StrEnum):
    """Which tokens of a chunk give a row of logits."""

    ALL = "all"
    LAST = "last"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to append to one sequence."""

    sequence: int
    tokens: Sequence[int]
    start: int
    """Position of the first token: always the sequence's length."""
    logits: Wanted = Wanted.LAST

    def __post_init__(self) -> None:
        """Refuse an empty chunk, for which no native code has a meaning.

        Raises:
            ValueError: no tokens, or a negative number.
        """
        if not self.tokens or self.sequence < 0 or self.start < 0:
            raise ValueError(f"a chunk needs tokens, a sequence and a start: {self!r}")

    @property
    def n_rows(self) -> int:
        """Rows of logits that this chunk gives."""
        if self.logits is Wanted.ALL:
            return len(self.tokens)
        return 0 if self.logits is Wanted.NONE else 1


class ContextFull(Exception):
    """The KV cache has no room for this batch. Nothing of the batch was decoded."""


class DecodeFailed(Exception):
    """The batch could not be decoded; the sequences in it are in no known state and must be freed."""


class Tokenizer(Protocol):
    """The model's own vocabulary."""

    n_vocab: int
    bos_id: int | None
    add_bos: bool
    """A text of the model begins with `bos_id`."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, without a BOS. `special`: read "<|im_end|>" as the one token it names."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; a control token stands for none.

        Pieces need not be whole UTF-8 characters.
        """
        ...

    def name(self, token: int) -> str:
        """A token's text, control tokens included ("<|im_end|>")."""
        ...


class Runtime(Protocol):
    """A loaded model and its KV cache."""

    info: ModelInfo
    can: Capabilities
    tokenizer: Tokenizer
    n_ctx: int
    """Tokens of context, shared by all sequences."""
    n_batch: int
    """Most tokens in one `decode`."""
    n_sequences: int
    """Sequences are 0 .. n_sequences-1."""

    def decode(self, batch: Sequence[Chunk]) -> Logits:
        """Append each chunk to its sequence; at most `n_batch` tokens in all, a sequence at most once.

        Returns:
            float32 [rows, n_vocab], the rows that the chunks want, in the chunks' order. It may be a view
            of the runtime's memory: valid until the next call of `decode`.

        Raises:
            ContextFull: no room; the cache is as before.
            DecodeFailed: anything else.
            ValueError: the batch is not one that this interface allows; the cache is as before.
        """
        ...

    def length(self, sequence: int) -> int:
        """Tokens that the sequence holds."""
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all after the first `length` tokens.

        Raises:
            ValueError: further back than `can.rollback` allows.
        """
        ...

    def evict(self, sequence: int, start: int, stop: int) -> None:
        """Forget tokens [start, stop) and close the gap.

        Raises:
            ValueError: not `can.shift`.
        """
        ...

    def fork(self, parent: int, child: int, length: int) -> None:
        """Make `child` the first `length` tokens of `parent`, sharing their cells; what it held is gone.

        Raises:
            ValueError: not `can.fork`.
        """
        ...

    def free(self, sequence: int) -> None:
        """Forget the whole sequence."""
        ...

    def export_state(self, sequence: int) -> bytes:
        """The sequence's cells, to be imported under the same model and settings only."""
        ...

    def import_state(self, sequence: int, state: bytes) -> None:
        """Restore what `export_state` gave.

        Raises:
            ValueError: the state is damaged or foreign; the sequence is empty then.
        """
        ...

    def set_threads(self, n_decode: int, n_prefill: int) -> None:
        """Threads for single tokens and for batches."""
        ...

    def close(self) -> None:
        """Free the model and the cache."""
        ...
