"""How many cores other programs leave, seen while nothing is computed: what the next step begins with."""

import time
from collections.abc import Callable


class Spare:
    """Looks at the machine between two marks."""

    LEAST_S = 0.1
    """A shorter look says nothing: systems count CPU times in hundredths of a second."""
    GLANCES = 5
    """Who asked us, or has just ended, may still be running for a moment: so often it is seen who is,"""
    BETWEEN_S = 0.001
    """and so long after each other."""

    def __init__(
        self,
        idle_clock: Callable[[], float],
        *,
        free_now: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin to look.

        Args:
            idle_clock: seconds in which cores that this process may use were idle, all together.
            free_now: cores that nobody else wants at this moment; None where that is unknown.
            clock: seconds.
            cpu_clock: CPU seconds of this process.
            sleep: waits so many seconds.
        """
        self.idle_clock = idle_clock
        self._free_now = free_now
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self.mark()

    def mark(self) -> None:
        """Look from now on."""
        self._from = self._clock(), self.idle_clock() + self._cpu_clock()

    def look(self, wanted: int) -> tuple[float, float] | None:
        """What was there for this process since the mark.

        Args:
            wanted: more cores than these are of no use.

        Returns:
            Cores, those that it used itself included, and over how many seconds. None after too short a time.
            Others that have come or gone meanwhile count for nothing: the cores are as many as were free on
            average, or as are now, whichever is more.
        """
        began, unused = self._from
        seconds = self._clock() - began
        if seconds < self.LEAST_S:
            return None
        cores = (self.idle_clock() + self._cpu_clock() - unused) / seconds
        free = self._free_now()
        for _ in range(self.GLANCES - 1):
            if free is None or max(cores, free) > wanted - 0.5:
                break
            self._sleep(self.BETWEEN_S)
            free = max(free, self._free_now() or 0)
        return max(cores, free or 0), seconds
