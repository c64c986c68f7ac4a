"""How many threads to compute with, while other programs come and go.

llama.cpp's threads meet at a barrier many times a token and spin there. When another program takes one core
for a moment, all others wait for the thread that lost it: with as many threads as cores, two busy loops on
two cores cost five sixths of the speed, where one thread fewer costs half. So the number follows the machine:
work begins with as many threads as there were cores to spare (`edgechat.engine.spare`), and then learns.

Two signals tell a busy machine from a long context, which makes steps slower as well. *Share*: a spinning
thread uses its core all the time, so the process's CPU time over (wall time * threads) is 1 when it has its
cores to itself, and falls as soon as others take turns on them; the context doesn't change it. *Jumps*: where
CPU time is unknown, a step that takes a third longer than the last ones did; contexts grow slowly. Whether
there is room for more threads is seen by cores that are *idle*: one thread may have a core to itself while
two others fight for the second, and trying it out costs steps that take ten or a hundred times as long.

A signal only starts a trial: some steps with another number, compared with the steps just before by their
medians, so that single steps in which the machine was elsewhere don't count. A failed trial makes the pause
before the next longer; a lasting change of load shortens it again.
"""

import time
from collections.abc import Callable
from statistics import median


class ThreadController:
    """Decides for one kind of work: decoding and prefill have controllers of their own."""

    BUSY = 0.9
    """Below this share, others use our cores."""
    FREE = 0.95
    """From this share on, more threads may find cores."""
    JUMP = 1.3
    """Without CPU times, steps that take so much longer than before tell of others."""
    BETTER = 0.96
    """A trial wins if its steps take at most so much of the time."""
    HOPELESS = 1.5
    """A trial ends early if its first steps take so much longer,"""
    DREADFUL = 3.0
    """and a trial of more threads at the first step that takes so much longer."""
    LONG = 2.5
    """Seconds after which a window ends where the share is known, however few steps were made in it."""
    IDLE = 0.5
    """Share of a core that must have been idle for each further thread."""
    FIRST_PAUSE = 1.0
    """Seconds between a trial that failed and the next in that direction; doubles each time."""
    LONGEST_PAUSE = 120.0
    EXPLORE = 4
    """From so many threads on, fewer are tried without a signal too: the last ones may be of no use."""
    GAP = 10.0
    """After so many seconds without work, the machine may be another."""

    def __init__(
        self,
        most: int,
        *,
        window: int = 8,
        trial: int = 6,
        settle: int = 1,
        clock: Callable[[], float] = time.monotonic,
        idle_clock: Callable[[], float] | None = None,
    ) -> None:
        """Begin with `most` threads.

        Args:
            most: physical cores that this process may use.
            window: steps that are judged together.
            trial: steps with another number of threads.
            settle: steps after each change that are not looked at.
            clock: seconds.
            idle_clock: seconds in which cores that this process may use were idle, all cores together; None
                where that is unknown.

        Raises:
            ValueError: a number below 1 (`settle`: below 0).
        """
        if min(most, window, trial) < 1 or settle < 0:
            raise ValueError(
                f"threads {most}, window {window}, trial {trial}, settle {settle}: give 1 or more"
            )
        self.most = most
        self.n_threads = most
        """For the next step."""
        self._window, self._trial, self._settle_steps = window, trial, settle
        self._clock = clock
        self._idle_clock = idle_clock
        self._idle_from: tuple[float, float] | None = None  # the time and the idle clock's, as a window began
        self._home: int | None = None  # where a trial came from
        self._home_time = 0.0
        self._usual: float | None = None  # what a step takes when all is well
        self._share: float | None = None  # of the window before
        self._pause = {-1: self.FIRST_PAUSE, 1: self.FIRST_PAUSE}
        now = clock()
        self._next = {-1: now, 1: now}
        self._explore_at, self._explore_pause = now + self.FIRST_PAUSE, self.FIRST_PAUSE
        self._last = now
        self._times: list[float] = []
        self._wall = 0.0
        self._cpu: float | None = 0.0
        self._to_settle = 0

    def begin(self, n_threads: int) -> None:
        """Go on with `n_threads`: the machine was seen while nothing was computed."""
        self._home = None
        self.n_threads = max(1, min(n_threads, self.most))
        self._forget(self._clock())

    @property
    def busy(self) -> bool:
        """Whether other programs were seen on our cores of late."""
        return self.n_threads < self.most or (self._share is not None and self._share < self.BUSY)

    def observe(self, seconds: float, cpu_seconds: float | None = None, work: float = 1.0) -> int:
        """Learn from one step, which ran with `n_threads`.

        Args:
            seconds: wall time of the computation alone.
            cpu_seconds: the whole process's CPU time in it (`time.process_time`, which counts all threads);
                None where that is unknown.
            work: how long the step was expected to take, in any unit: V(k) of its batch, or its tokens.

        Returns:
            The threads for the next step.
        """
        now = self._clock()
        if now - self._last > self.GAP + seconds:
            self._wake(now)
        self._last = now
        if self._home is not None and self.n_threads > self._home and seconds / work > self._dreadful:
            self._fail_trial(now, self._home)
            return self.n_threads
        if self._to_settle > 0:
            self._to_settle -= 1
            return self.n_threads
        self._times.append(seconds / work)
        self._wall += seconds
        if cpu_seconds is None:
            self._cpu = None
        elif self._cpu is not None:
            self._cpu += cpu_seconds
        if self._home is not None:
            self._judge_trial(now, self._home)
        elif len(self._times) >= self._window or (self._cpu is not None and self._wall >= self.LONG):
            self._judge_window(now)
        return self.n_threads

    # --- at home

    def _judge_window(self, now: float) -> None:
        """See whether something calls for another number."""
        took = median(self._times)
        share = None if self._cpu is None else self._cpu / (self._wall * self.n_threads)
        before, self._share = self._share, share
        idle = self._idle_cores(now)
        cleared = share is not None and before is not None and share >= self.FREE and before < self.BUSY
        if cleared and (idle is None or idle >= self.IDLE):
            self._next[1], self._pause[1] = now, self.FIRST_PAUSE  # the others have gone
        if share is not None:
            crowded = share < self.BUSY
            room = share >= self.FREE
        else:
            crowded = self._usual is not None and took > self.JUMP * self._usual
            room = True
        # What is usual follows the context slowly, and a busy machine not at all, for a while.
        weight = 0.05 if crowded else 0.3
        self._usual = took if self._usual is None else self._usual + weight * (took - self._usual)
        self._clear()
        if crowded and self.n_threads > 1 and now >= self._next[-1]:
            self._try(self._fewer(share), took)
        elif room and now >= self._next[1] and (more := self._more(idle)) > self.n_threads:
            self._try(more, took)
        elif self.n_threads >= self.EXPLORE and now >= self._explore_at:
            self._explore_pause = min(self.LONGEST_PAUSE, 2 * self._explore_pause)
            self._explore_at = now + self._explore_pause
            self._try(self.n_threads - max(1, self.n_threads // 8), took)

    def _idle_cores(self, now: float) -> float | None:
        """Cores that nobody used since the window began; None where that is unknown."""
        if self._idle_clock is None or self._idle_from is None or now <= self._idle_from[0]:
            return None
        return (self._idle_clock() - self._idle_from[1]) / (now - self._idle_from[0])

    def _more(self, idle: float | None) -> int:
        """The threads to try next, for which there is room."""
        n = self.n_threads
        most = self.most if idle is None else n + int(idle + 1 - self.IDLE)
        return min(self.most, most, n + max(1, n // 2))

    def _fewer(self, share: float | None) -> int:
        """The threads that would have cores to themselves.

        With l others on c cores, n threads get a share of c / (n + l); c - l cores are free of them.
        """
        n = self.n_threads
        if share is None or self._pause[-1] > self.FIRST_PAUSE:  # that was tried and did not help
            return n - 1
        return max(1, min(n - 1, round(self.most + n - self.most / max(share, 0.01))))

    def _try(self, n_threads: int, took: float) -> None:
        self._home, self._home_time = self.n_threads, took
        self._change(n_threads)

    # --- on trial

    def _judge_trial(self, now: float, home: int) -> None:
        """See whether the other number is better."""
        direction = 1 if self.n_threads > home else -1
        hopeless = len(self._times) >= 2 and min(self._times) > self.HOPELESS * self._home_time
        if len(self._times) < self._trial and not hopeless:
            return
        took = median(self._times)
        self._home = None
        if took <= self.BETTER * self._home_time:
            self._usual = took
            self._pause[direction] = self.FIRST_PAUSE
            self._next[direction] = now
            self._next[-direction] = now + self._pause[-direction]
            if self.n_threads == self.most:
                self._pause = {-1: self.FIRST_PAUSE, 1: self.FIRST_PAUSE}
            self._clear()
            return
        self._fail_trial(now, home)

    @property
    def _dreadful(self) -> float:
        return self.DREADFUL * self._home_time

    def _fail_trial(self, now: float, home: int) -> None:
        """Go back, and wait longer before the next."""
        direction = 1 if self.n_threads > home else -1
        self._home = None
        self._pause[direction] = min(self.LONGEST_PAUSE, 2 * self._pause[direction])
        self._next[direction] = now + self._pause[direction]
        self._change(home)

    # --- housekeeping

    def _change(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._clear()
        self._to_settle = self._settle_steps

    def _clear(self) -> None:
        self._times, self._wall, self._cpu, self._to_settle = [], 0.0, 0.0, 0
        self._idle_from = None
        if self._idle_clock is not None and self.n_threads < self.most:
            self._idle_from = self._clock(), self._idle_clock()

    def _wake(self, now: float) -> None:
        """After a pause in the work: nothing measured before it counts."""
        if self._home is not None:
            self.n_threads, self._home = self._home, None
        self._forget(now)

    def _forget(self, now: float) -> None:
        """All that was measured."""
        self._usual = self._share = None
        self._pause = {-1: self.FIRST_PAUSE, 1: self.FIRST_PAUSE}
        self._next = {-1: now, 1: now}
        self._clear()
