"""A model writes texts of its own, many at a time, in llama.cpp: `python -m quantize.sample_native`.

Only the process that `quantize.child` starts runs what is below `serve`.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from models.amx import extra_buffers_work
from quantize import child
from quantize.errors import NativeFailure

BATCH = 512
QUIET_AT_LEAST = 4
"""GGML_LOG_LEVEL_ERROR."""


@dataclass(slots=True)
class Document:
    """A text in the making."""

    number: int
    """Its place among all."""
    kind: int
    """Which of the kinds of openings it began with."""
    tokens: list[int]
    done: int = 0
    """Tokens that the model has seen."""
    random: np.random.Generator = field(default_factory=np.random.default_rng)


class Writers:
    """Which text is begun when, so that each kind gets its share: policy without a model."""

    def __init__(self, openings: Sequence[Sequence[Sequence[int]]], wanted: Sequence[int], seed: int) -> None:
        """
        Args:
            openings: of each kind, tokens that a text begins with; they are taken in turn.
            wanted: of each kind, how many tokens.
            seed: of all texts together.
        """
        self.openings = openings
        self.wanted = wanted
        self.seed = seed
        self.documents: list[Document] = []

    def next(self) -> Document | None:
        """The next text to begin; None: what was begun is enough."""
        lacking = [
            wanted - sum(len(one.tokens) for one in self.documents if one.kind == kind)
            for kind, wanted in enumerate(self.wanted)
        ]
        kind = max(range(len(lacking)), key=lambda one: lacking[one])
        if lacking[kind] <= 0:
            return None
        number = len(self.documents)
        before = sum(one.kind == kind for one in self.documents)
        opening = list(self.openings[kind][before % len(self.openings[kind])])
        document = Document(number, kind, opening, random=np.random.default_rng([self.seed, number]))
        self.documents.append(document)
        return document

    @property
    def share(self) -> float:
        """Of what is wanted, how much is written."""
        written = [
            sum(len(one.tokens) for one in self.documents if one.kind == k) for k in range(len(self.wanted))
        ]
        return sum(min(*both) for both in zip(written, self.wanted, strict=True)) / max(1, sum(self.wanted))


def draw(logits: npt.NDArray[np.float32], random: np.random.Generator) -> int:
    """A token by the model's own chances, at temperature 1.

    Args:
        logits: float32 [V].
        random: one number of it is taken.
    """
    reached = np.cumsum(np.exp(logits - logits.max()), dtype=np.float64)
    return int(min(np.searchsorted(reached, random.random() * reached[-1], side="right"), len(logits) - 1))


def main() -> int:
    """Do the order that stdin brings: model, openings, wanted, length, seed, parallel, threads.

    Told is {"share": 0..1} on the way, and {"texts": [[kind, [token, ...]], ...]} at the end.
    """
    return child.serve(_work)


def _work(job: child.Message, report: child.Tell) -> int:
    import llama_cpp

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        if level == QUIET_AT_LEAST and text.strip():
            report({"words": " ".join(text.decode("utf-8", "replace").split())[:500]})

    llama_cpp.llama_log_set(on_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_extra_bufts = extra_buffers_work()
    parameters.n_gpu_layers = 0  # the same text on every machine of a kind
    model = llama_cpp.llama_model_load_from_file(os.fsencode(job["model"]), parameters)
    if not model:
        return 1
    writers = Writers(job["openings"], job["wanted"], job["seed"])
    try:
        write(
            llama_cpp,
            model,
            writers,
            parallel=job["parallel"],
            length=job["length"],
            threads=job["threads"],
            told=lambda share: report({"share": share}),
        )
    except NativeFailure as error:
        report({"words": str(error)})
        return 1
    report({"texts": [[one.kind, one.tokens] for one in writers.documents]})
    return 0


def write(
    library: Any,
    model: Any,
    writers: Writers,
    *,
    parallel: int,
    length: int,
    threads: int,
    told: Callable[[float], None],
) -> None:
    """Have a loaded model write all texts that are wanted.

    Args:
        library: llama_cpp.
        model: its model.
        writers: whose documents grow.
        parallel: texts at once.
        length: most tokens of a text.
        threads: to compute with.
        told: of the share that is written.

    Raises:
        NativeFailure: llama.cpp refused.
    """
    settings = library.llama_context_default_params()
    settings.n_ctx = parallel * length
    settings.n_seq_max = parallel
    settings.n_batch = settings.n_ubatch = BATCH
    settings.n_threads = settings.n_threads_batch = threads
    context = library.llama_init_from_model(model, settings)
    if not context:
        raise NativeFailure("llama.cpp could not make a context: there may not be enough memory")
    try:
        code = _Loop(library, model, context, length).write(writers, parallel, told)
    finally:
        library.llama_free(context)
    if code:
        raise NativeFailure(f"llama.cpp could not compute ({code}): there may not be enough memory")


class _Loop:
    """llama.cpp's part: each step gives every text one token more."""

    def __init__(self, library: Any, model: Any, context: Any, length: int) -> None:
        self.library = library
        self.context = context
        self.vocabulary = library.llama_model_get_vocab(model)
        self.n_vocab = library.llama_vocab_n_tokens(self.vocabulary)
        self.length = length
        self.batch = library.llama_batch_init(BATCH, 0, 1)

    def write(self, writers: Writers, parallel: int, told: Callable[[float], None]) -> int:
        """Until all is written; llama.cpp's code."""
        running: list[Document | None] = [writers.next() for _ in range(parallel)]
        told_at = 0.0
        while any(running):
            asked = self._fill(running)
            code: int = self.library.llama_decode(self.context, self.batch)
            if code:
                return code
            for row, place in asked:
                self._add(running, place, row)
                if running[place] is None:
                    memory = self.library.llama_get_memory(self.context)
                    self.library.llama_memory_seq_rm(memory, place, -1, -1)
                    running[place] = writers.next()
            if writers.share >= told_at + 0.01:
                told_at = writers.share
                told(told_at)
        return 0

    def _fill(self, running: Sequence[Document | None]) -> list[tuple[int, int]]:
        """Put what the model has not seen into the batch: (row, place) of those that then get a token."""
        at, asked = 0, []
        for place, document in enumerate(running):
            if document is None:
                continue
            for position in range(document.done, len(document.tokens)):
                if at == BATCH:
                    break
                is_last = position + 1 == len(document.tokens)
                self.batch.token[at] = document.tokens[position]
                self.batch.pos[at] = position
                self.batch.n_seq_id[at] = 1
                self.batch.seq_id[at][0] = place
                self.batch.logits[at] = is_last
                if is_last:
                    asked.append((at, place))
                document.done = position + 1
                at += 1
        self.batch.n_tokens = at
        return asked

    def _add(self, running: list[Document | None], place: int, row: int) -> None:
        """A token more of a text; it is done when the model says so, or at its full length."""
        document = running[place]
        if document is None:
            return
        pointer = self.library.llama_get_logits_ith(self.context, row)
        token = draw(np.ctypeslib.as_array(pointer, shape=(self.n_vocab,)), document.random)
        document.tokens.append(token)
        ended = bool(self.library.llama_vocab_is_eog(self.vocabulary, token))
        if ended or len(document.tokens) >= self.length:
            running[place] = None


if __name__ == "__main__":
    sys.exit(main())
