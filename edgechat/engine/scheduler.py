"""What each step computes: one batch for all who wait. Pure policy, in plain numbers.

Every running answer gets its next token in every step; what is left of the batch goes to prompts, first
come, first served. Beside running answers a prompt's slice is as long as would make the step about twice
as long as without it, by the times that were measured; on its own it may fill the batch.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Job(Protocol):
    """A request, as far as the scheduler cares."""

    answering: bool
    """Whether the prompt is computed, so that each step brings a token."""
    held: bool
    """Whether another job must end before it goes on."""

    @property
    def pending(self) -> int:
        """Tokens that are known and not yet computed, at least 1: the rest of the prompt, or the last token
        (and the drafts after it)."""
        ...

    @property
    def n_tokens(self) -> int:
        """Tokens known in all: the room that it will need next."""
        ...

    @property
    def n_run(self) -> int:
        """Tokens of its answer since it was admitted."""
        ...


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class Share(Generic[J]):
    """A job's part of a batch."""

    job: J
    n_tokens: int


class PrefillBudget:
    """How many prompt tokens fit beside running answers without making them wait about twice as long."""

    FIRST = 8
    """Before anything was measured."""
    LEAST = 4
    """So that a prompt always comes on."""
    REMEASURE = 32
    """After so many steps with a slice, one goes without, to see how long steps take by themselves."""
    _WEIGHT = 0.25

    def __init__(self) -> None:
        self._decode_s: float | None = None  # a step of answers only
        self._token_s: float | None = None  # one prompt token beside them
        self._guess_s: float | None = None  # one prompt token in a step of its own
        self._mixed_steps = 0

    def observe(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """Learn how long a step took, of so many answers' and prompts' tokens."""
        if not n_prefill:
            self._mixed_steps = 0
            self._decode_s = self._mean(self._decode_s, seconds)
        elif not n_decode:
            self._guess_s = self._mean(self._guess_s, seconds / n_prefill)
        else:
            self._mixed_steps += 1
            if self._decode_s is not None:
                extra = max(seconds - self._decode_s, 0.0) / n_prefill
                self._token_s = self._mean(self._token_s, extra)

    def tokens(self) -> int:
        """Prompt tokens that the next step may take beside answers; 0 to measure without."""
        if self._mixed_steps >= self.REMEASURE:
            return 0
        token_s = self._guess_s if self._token_s is None else self._token_s
        if self._decode_s is None or token_s is None:
            return self.FIRST
        if token_s <= 0:
            return 2**30
        return max(self.LEAST, int(self._decode_s / token_s))

    def _mean(self, mean: float | None, value: float) -> float:
        return value if mean is None else mean + self._WEIGHT * (value - mean)


class Scheduler(Generic[J]):
    """Who waits, who runs, and what the next batch is."""

    def __init__(self, n_batch: int, n_sequences: int, n_ctx: int, max_waiting: int = 64) -> None:
        self.n_batch = n_batch
        self.n_sequences = n_sequences
        self.n_ctx = n_ctx
        self.max_waiting = max_waiting
        self.budget = PrefillBudget()
        self.waiting: deque[J] = deque()
        self.active: list[J] = []
        """In the order of their coming."""
        self._turn = 0

    @property
    def full(self) -> bool:
        """Whether no more requests can wait."""
        return len(self.waiting) >= self.max_waiting

    @property
    def running(self) -> list[J]:
        """Those who have their sequence and needn't wait for another."""
        return [job for job in self.active if not job.held]

    def __iter__(self) -> Iterator[J]:
        yield from self.active
        yield from self.waiting

    def submit(self, job: J) -> None:
        """Let a job wait its turn."""
        self.waiting.append(job)

    def next_to_admit(self) -> J | None:
        """The first who waits, if there is a sequence and room in the context for it beside the others."""
        if not self.waiting or self.waiting[0].held or len(self.active) >= self.n_sequences:
            return None
        job = self.waiting[0]
        taken = sum(other.n_tokens + 1 for other in self.active)
        return job if not self.active or taken + job.n_tokens + 1 <= self.n_ctx else None

    def admit(self, job: J) -> None:
        """`job`, which was the next, has its sequence."""
        self.waiting.remove(job)
        self.active.append(job)

    def join(self, job: J) -> None:
        """`job` has its sequence already: another one waits for it."""
        self.active.append(job)

    def remove(self, job: J) -> None:
        """`job` has ended, wherever it was."""
        if job in self.active:
            self.active.remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)

    def give_way(self) -> J | None:
        """Send the youngest back to wait, to make room for the others; None if there is only one."""
        if len(self.active) < 2:
            return None
        job = self.active.pop()
        self.waiting.appendleft(job)
        return job

    def overdue(self, quantum: int) -> J | None:
        """The first whose answer has got `quantum` tokens while others can't be admitted beside it."""
        if not self.waiting or self.waiting[0].held or self.next_to_admit() is not None:
            return None
        return next((job for job in self.active if job.n_run >= quantum and not job.held), None)

    def wait_again(self, job: J) -> None:
        """`job`, which runs, lets those who wait come first."""
        self.active.remove(job)
        self.waiting.append(job)

    def plan(self) -> list[Share[J]]:
        """The next batch: at most `n_batch` tokens; empty if nothing is to be done."""
        active = self.running
        if len(active) == 1:  # a chat
            job = active[0]
            return [Share(job, min(job.pending, self.n_batch))]
        answering = [job for job in active if job.answering]
        prompts = [job for job in active if not job.answering]
        room = self.n_batch
        shares: list[Share[J]] = []
        for index in range(len(answering)):
            job = answering[(self._turn + index) % len(answering)]
            if job.pending > room:  # more answers than fit: the others come first next time
                self._turn += index
                return shares
            shares.append(Share(job, job.pending))
            room -= job.pending
        if answering:
            room = min(room, self.budget.tokens())
        for job in prompts:
            if room <= 0:
                break
            shares.append(Share(job, min(job.pending, room)))
            room -= shares[-1].n_tokens
        return shares
