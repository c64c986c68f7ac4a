"""As many threads for each step as pay, by what the last ones took."""

import time
from collections.abc import Callable

from edgechat.engine.spare import Spare
from edgechat.engine.threads import ThreadController
from edgechat.runtimes.base import Runtime

FEW = 8
"""Up to so many tokens, a batch takes about as long as the weights take to be read, as one token does."""
_ONE_MORE = 0.45  # of a token's time: what each further token of such a batch takes, as measured


class Pace:
    """Sets a runtime's threads before each step, and learns from it; single tokens and prompts apart."""

    def __init__(
        self,
        runtime: Runtime,
        most: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        spare: Spare | None = None,
    ) -> None:
        """Begin with `most` threads for both, or as many as there are cores to spare.

        Args:
            runtime: whose threads are set.
            most: threads at most.
            clock: seconds.
            cpu_clock: CPU seconds of the whole process.
            spare: looks at the machine, since loading began; None where it says nothing.
        """
        self._runtime = runtime
        self._cpu_clock = cpu_clock
        self._spare = spare
        self._resting = True
        idle_clock = None if spare is None else spare.idle_clock
        self._decode = ThreadController(most, clock=clock, idle_clock=idle_clock)
        self._prefill = ThreadController(most, window=2, trial=2, clock=clock, idle_clock=idle_clock)
        self._set = (most, most)
        self._cpu_before = 0.0

    def before(self, n_tokens: int) -> None:
        """A step of `n_tokens` is about to be computed."""
        if self._resting:
            self._resting = False
            self._begin()
        decode = self._decode.n_threads
        # llama.cpp takes the threads for prompts whenever there is more than one token.
        wanted = (decode, decode if n_tokens <= FEW else self._prefill.n_threads)
        if wanted != self._set:
            self._runtime.set_threads(*wanted)
            self._set = wanted
        self._cpu_before = self._cpu_clock()

    def _begin(self) -> None:
        """Take no more threads than there are cores; after a long rest, not fewer either."""
        seen = None if self._spare is None else self._spare.look(self._decode.most)
        if seen is None:
            return
        cores, seconds = seen
        n_threads = max(1, round(cores))
        for controller in (self._decode, self._prefill):
            if n_threads < controller.n_threads or seconds > controller.GAP:
                controller.begin(n_threads)

    def rest(self) -> None:
        """There is nothing to compute."""
        self._resting = True
        if self._spare is not None:
            self._spare.mark()

    def after(self, n_tokens: int, seconds: float) -> None:
        """It took `seconds`."""
        cpu = self._cpu_clock() - self._cpu_before
        if n_tokens <= FEW:
            self._decode.observe(seconds, cpu, 1 + _ONE_MORE * (n_tokens - 1))
        else:
            self._prefill.observe(seconds, cpu, n_tokens)
