"""How likely a model finds a text, window by window: what perplexity is made of.

As in llama.cpp's perplexity tool: the text's tokens are cut into windows of `n_ctx`; in each, the first token
gives way to a BOS where the model's texts begin with one, the first half is context, and the tokens of the
second half are scored.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgechat.engine.process.messages import Event, Refused, Score, Scored, ScoreDone
from edgechat.errors import EdgechatError, ExitCode, ResourceError, UsageError, from_exception
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits, Runtime, Wanted

MIN_WINDOW = 8
MIN_WINDOWS = 2
SEQUENCE = 0
ROW_BYTES = 64 * 2**20
"""Logits of one slice: for a vocabulary of 262,144 that is 64 rows."""
AT_ONCE_BYTES = 4 * 2**20
"""Logits that are worked on at once: what is computed from them stays in the processor's cache."""


@dataclass(slots=True)
class _Job:
    """A text on its way."""

    id: int
    tokens: list[int]
    n_ctx: int
    bos: int | None
    window: int = 0
    position: int = 0
    """Tokens of this window in the cache."""
    nll: float = 0.0
    nll2: float = 0.0

    @property
    def n_windows(self) -> int:
        return len(self.tokens) // self.n_ctx

    @property
    def n_scored(self) -> int:
        """Scored tokens of a window: those after the first of the second half."""
        return self.n_ctx - self.n_ctx // 2 - 1

    def window_tokens(self) -> list[int]:
        """[n_ctx]: this window's tokens, as the model sees them."""
        start = self.window * self.n_ctx
        tokens = self.tokens[start : start + self.n_ctx]
        return tokens if self.bos is None else [self.bos, *tokens[1:]]


class Scorer:
    """Scores texts on a runtime that it shares with an engine.

    It holds the cache from a window's first slice to its last, and nothing of it in between.
    """

    def __init__(
        self, runtime: Runtime, emit: Callable[[Event], None], make_room: Callable[[], None] = lambda: None
    ) -> None:
        """Score on `runtime`.

        Args:
            runtime: whose sequence 0 is used during a window.
            emit: gets each event.
            make_room: called before each window; frees all that is in the cache.
        """
        self._runtime = runtime
        self._emit = emit
        self._make_room = make_room
        self._jobs: list[_Job] = []

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._jobs)

    @property
    def holds_cache(self) -> bool:
        """Whether a window is under way: nobody else may use the runtime."""
        return bool(self._jobs) and self._jobs[0].position > 0

    def submit(self, request: Score) -> None:
        """Begin to score a text, or emit Refused."""
        try:
            self._jobs.append(self._accept(request))
        except EdgechatError as error:
            self._emit(Refused(request.id, error.code, str(error)))

    def cancel(self, request_id: int) -> None:
        """End a score where it is. Unknown requests have ended already: nothing to do."""
        for job in self._jobs:
            if job.id == request_id:
                self._end(job, Refused(job.id, ExitCode.INTERRUPTED, "cancelled"))
                return

    def step(self) -> bool:
        """Compute one slice of a window; False when there is nothing to do."""
        if not self._jobs:
            return False
        job = self._jobs[0]
        try:
            self._slice(job)
        except ContextFull:
            self._refuse(job, ResourceError(f"no room in the context for a window of {job.n_ctx} tokens"))
        except Exception as error:
            ours = from_exception(error)
            if ours is None and not isinstance(error, DecodeFailed | ValueError):
                raise
            self._refuse(job, ours or EdgechatError(f"the model failed at this text ({error})"))
        return True

    def _accept(self, request: Score) -> _Job:
        tokenizer = self._runtime.tokenizer
        if request.n_ctx < MIN_WINDOW:
            raise UsageError(f"windows of {request.n_ctx} tokens are too small: give {MIN_WINDOW} at least")
        if request.n_ctx > self._runtime.n_ctx:
            raise UsageError(
                f"windows of {request.n_ctx} tokens do not fit into a context of {self._runtime.n_ctx}"
            )
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        tokens = tokenizer.encode(request.text, special=False)
        if bos is not None:
            tokens = [bos, *tokens]
        if len(tokens) < MIN_WINDOWS * request.n_ctx:
            raise UsageError(
                f"the text is too short: it has {len(tokens)} tokens, and {MIN_WINDOWS} windows of "
                f"{request.n_ctx} are needed; give a longer text, or smaller windows with --ctx"
            )
        return _Job(request.id, tokens, request.n_ctx, bos)

    def _slice(self, job: _Job) -> None:
        """Decode the next tokens of a window, and score what they foretell."""
        if job.position == 0:
            self._make_room()
            self._runtime.free(SEQUENCE)
        tokens = job.window_tokens()
        half, start = job.n_ctx // 2, job.position
        if start < half:
            stop, wanted = min(half, start + self._runtime.n_batch), Wanted.NONE
        else:  # nobody asks what comes after the window's last token: it isn't decoded
            rows = max(1, ROW_BYTES // (4 * self._runtime.tokenizer.n_vocab))
            stop, wanted = min(job.n_ctx - 1, start + min(rows, self._runtime.n_batch)), Wanted.ALL
        job.position = stop  # the cache is in use from here on, whatever happens
        logits = self._runtime.decode([Chunk(SEQUENCE, tokens[start:stop], start, wanted)])
        if wanted is Wanted.ALL:
            losses = negative_log_likelihoods(logits, tokens[start + 1 : stop + 1])
            job.nll += float(losses.sum())
            job.nll2 += float(np.square(losses).sum())
        if stop == job.n_ctx - 1:
            self._finish_window(job)

    def _finish_window(self, job: _Job) -> None:
        if not math.isfinite(job.nll2):
            raise EdgechatError("the model's logits are not numbers: its file or its backend is at fault")
        self._runtime.free(SEQUENCE)
        job.window += 1
        self._emit(Scored(job.id, job.window, job.n_windows, job.nll, job.nll2, job.n_scored))
        job.position, job.nll, job.nll2 = 0, 0.0, 0.0
        if job.window == job.n_windows:
            self._end(job, ScoreDone(job.id, len(job.tokens)))

    def _refuse(self, job: _Job, error: EdgechatError) -> None:
        self._end(job, Refused(job.id, error.code, str(error)))

    def _end(self, job: _Job, event: Event) -> None:
        if job.position > 0:
            self._runtime.free(SEQUENCE)
        self._jobs.remove(job)
        self._emit(event)


def negative_log_likelihoods(logits: Logits, targets: Sequence[int]) -> npt.NDArray[np.float64]:
    """How surprising each target is, in nats.

    Args:
        logits: float32 [rows, n_vocab].
        targets: [rows] token ids.

    Returns:
        float64 [rows], log(sum(exp(logits))) - logits[target]. The exponentials are float32, at most 1, and
        their sum is float64: good to some 1e-7.
    """
    n_rows, n_vocab = logits.shape
    losses = np.empty(n_rows)
    step = max(1, AT_ONCE_BYTES // (4 * n_vocab))
    for start in range(0, n_rows, step):
        rows = logits[start : start + step]
        top = rows.max(axis=1, keepdims=True)  # [step, 1]
        sums = np.exp(rows - top).sum(axis=1, dtype=np.float64)
        chosen = rows[np.arange(len(rows)), list(targets[start : start + step])]
        losses[start : start + step] = np.log(sums) + top[:, 0] - chosen
    return losses
