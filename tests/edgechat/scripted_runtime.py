"""A runtime without a model: a toy vocabulary, logits that are a function of the tokens in the cache.

It keeps the interface's rules to the letter and refuses what breaks them, so that an engine which passes
here asks no native code for what would abort. It counts what it computes, so that tests can prove it.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgechat.records import Capabilities, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, Logits, Wanted

CONTROL = ("<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
MERGED = (
    "Hello",
    " world",
    " the",
    "the",
    " a",
    "user",
    "assistant",
    "system",
    "\n\n",
    " User",
    "ing",
    " answer",
)
BOS, IM_START, IM_END, END_OF_TEXT = range(256, 260)
ALL_CAPABLE = Capabilities(shift=True, rollback=-1, fork=True)


class ToyTokenizer:
    """Bytes 0..255, four control tokens, a few longer pieces. The longest piece wins."""

    def __init__(self, *, add_bos: bool = False, space_before: bool = False) -> None:
        self.bos_id: int | None = BOS
        self.add_bos = add_bos
        self.space_before = space_before  # as SentencePiece vocabularies do
        self.n_encoded = 0
        """Characters that were tokenized so far."""
        self._pieces = [bytes([byte]) for byte in range(256)]
        self._pieces += [b""] * len(CONTROL)
        self._pieces += [text.encode() for text in MERGED]
        self.n_vocab = len(self._pieces)
        first = 256 + len(CONTROL)
        self._merged = sorted(
            ((piece, first + i) for i, piece in enumerate(self._pieces[first:])), key=lambda one: -len(one[0])
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`."""
        self.n_encoded += len(text)
        rest = text.encode()
        if self.space_before and rest and not rest.startswith(tuple(name.encode() for name in CONTROL)):
            rest = b" " + rest
        tokens = []
        while rest:
            token, length = self._first(rest, special)
            tokens.append(token)
            rest = rest[length:]
        return tokens

    def _first(self, rest: bytes, special: bool) -> tuple[int, int]:
        if special:
            for index, name in enumerate(CONTROL):
                if rest.startswith(name.encode()):
                    return 256 + index, len(name)
        for piece, token in self._merged:
            if rest.startswith(piece):
                return token, len(piece)
        return rest[0], 1

    def piece(self, token: int) -> bytes:
        """A token's bytes; none for a control token."""
        return self._pieces[token]

    def name(self, token: int) -> str:
        """A token's text."""
        if 256 <= token < 256 + len(CONTROL):
            return CONTROL[token - 256]
        return self._pieces[token].decode("utf-8", "replace")


@dataclass(frozen=True)
class Cell:
    """One token in the cache; equal only to itself, as sequences may share it."""

    token: int

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def toy_logits(tokens: Sequence[int], n_vocab: int) -> Logits:
    """float32 [n_vocab], a function of all `tokens`; printable characters are likely, control tokens not."""
    seed = zlib.crc32(np.asarray(tokens, dtype=np.int32).tobytes())
    row = np.random.Generator(np.random.PCG64(seed)).standard_normal(n_vocab).astype(np.float32)
    row[32:127] += 2
    row[256:260] -= 20
    return row


class ScriptedRuntime:
    """The interface on toy logits.

    `script` maps the text of a prompt's end to the tokens that the model answers with: after a sequence
    whose text ends with it come these tokens, one by one, with a logit of 50.
    """

    def __init__(
        self,
        *,
        n_ctx: int = 512,
        n_batch: int = 64,
        n_sequences: int = 4,
        can: Capabilities = ALL_CAPABLE,
        tokenizer: ToyTokenizer | None = None,
        template: str | None = None,
        on_decode: Callable[[Sequence[Chunk]], None] = lambda batch: None,
        logits: Callable[[Sequence[int], int], Logits] = toy_logits,
    ) -> None:
        self.tokenizer = tokenizer or ToyTokenizer()
        self.can = can
        self.n_ctx, self.n_batch, self.n_sequences = n_ctx, n_batch, n_sequences
        self.on_decode = on_decode
        self.script: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.batches: list[list[Chunk]] = []
        """Every batch that was decoded."""
        self.closed = False
        self._logits = logits
        self._cells: list[list[Cell]] = [[] for _ in range(n_sequences)]
        self.info = ModelInfo(
            name="toy",
            path="toy.gguf",
            architecture="toy",
            quantization="F32",
            n_vocab=self.tokenizer.n_vocab,
            n_layers=1,
            n_ctx_train=4096,
            n_ctx=n_ctx,
            n_params=1,
            size_bytes=1,
            kv_bytes_per_token=1,
            eog_ids=(IM_END, END_OF_TEXT),
            chat_template=template,
            can=can,
            backend="scripted",
            n_gpu_layers=0,
            n_threads=1,
            fingerprint="toy",
        )

    # --- for tests

    def answer(self, after: str, tokens: Iterable[int] | str) -> None:
        """After text that ends with `after`, answer `tokens` and then <|im_end|>."""
        if isinstance(tokens, str):
            tokens = self.tokenizer.encode(tokens)
        self.script[tuple(self.tokenizer.encode(after))] = (*tokens, IM_END)

    @property
    def n_decoded(self) -> int:
        """Tokens computed so far."""
        return sum(len(chunk.tokens) for batch in self.batches for chunk in batch)

    @property
    def n_used(self) -> int:
        """Cells in use; a shared one counts once."""
        return len({cell for cells in self._cells for cell in cells})

    def tokens(self, sequence: int) -> list[int]:
        """What a sequence holds."""
        return [cell.token for cell in self._cells[sequence]]

    # --- the interface

    def decode(self, batch: Sequence[Chunk]) -> Logits:
        """Append each chunk to its sequence."""
        self._check(batch)
        needed = sum(len(chunk.tokens) for chunk in batch)
        if self.n_used + needed > self.n_ctx:
            raise ContextFull
        self.on_decode(batch)  # may take its time, or fail
        self.batches.append(list(batch))
        rows = []
        for chunk in batch:
            cells = self._cells[chunk.sequence]
            for index, token in enumerate(chunk.tokens):
                cells.append(Cell(token))
                last = index == len(chunk.tokens) - 1
                if chunk.logits is Wanted.ALL or (chunk.logits is Wanted.LAST and last):
                    rows.append(self._row([cell.token for cell in cells]))
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.tokenizer.n_vocab)

    def _check(self, batch: Sequence[Chunk]) -> None:
        if not batch:
            raise ValueError("an empty batch")
        if sum(len(chunk.tokens) for chunk in batch) > self.n_batch:
            raise ValueError("more tokens than n_batch")
        if max(Counter(chunk.sequence for chunk in batch).values()) > 1:
            raise ValueError("a sequence twice in one batch")
        for chunk in batch:
            if chunk.start != self.length(chunk.sequence):
                raise ValueError(f"start {chunk.start} of a sequence of {self.length(chunk.sequence)}")
            if any(not 0 <= token < self.tokenizer.n_vocab for token in chunk.tokens):
                raise ValueError("a token that is not in the vocabulary")

    def _row(self, tokens: list[int]) -> Logits:
        row = self._logits(tokens, self.tokenizer.n_vocab)
        for after, answer in self.script.items():
            for said in range(len(answer)):
                if tuple(tokens[len(tokens) - len(after) - said :]) == after + answer[:said]:
                    row[answer[said]] = 50
        return row

    def length(self, sequence: int) -> int:
        """Tokens that the sequence holds."""
        return len(self._cells[self._checked(sequence)])

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the tail."""
        back = self.length(sequence) - length
        if back < 0 or length < 0:
            raise ValueError("a truncation that lengthens")
        if 0 <= self.can.rollback < back:
            raise ValueError(f"can't roll back {back} tokens")
        del self._cells[sequence][length:]

    def evict(self, sequence: int, start: int, stop: int) -> None:
        """Forget a part and close the gap."""
        if not self.can.shift:
            raise ValueError("can't shift")
        if not 0 <= start < stop <= self.length(sequence):
            raise ValueError("an eviction outside of the sequence")
        del self._cells[sequence][start:stop]

    def fork(self, parent: int, child: int, length: int) -> None:
        """Share a prefix."""
        if not self.can.fork:
            raise ValueError("can't fork")
        if parent == child or not 0 <= length <= self.length(parent):
            raise ValueError("a fork of what isn't there")
        self._cells[self._checked(child)] = self._cells[parent][:length]

    def free(self, sequence: int) -> None:
        """Forget the sequence."""
        self._cells[self._checked(sequence)] = []

    def export_state(self, sequence: int) -> bytes:
        """The tokens."""
        return np.array(self.tokens(sequence), dtype=np.int32).tobytes()

    def import_state(self, sequence: int, state: bytes) -> None:
        """The tokens back."""
        self.free(sequence)
        self._cells[sequence] = [Cell(int(token)) for token in np.frombuffer(state, dtype=np.int32)]

    def set_threads(self, n_decode: int, n_prefill: int) -> None:
        """It needs none."""

    def close(self) -> None:
        """There is nothing to free."""
        self.closed = True

    def _checked(self, sequence: int) -> int:
        if not 0 <= sequence < self.n_sequences:
            raise ValueError(f"no sequence {sequence}")
        return sequence
