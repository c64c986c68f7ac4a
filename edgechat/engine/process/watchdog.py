"""When a process that should work has neither worked nor answered for too long."""

import time

SILENCE_S = 30.0
SILENCE_FACTOR = 20.0
IDLE_CPU_S = 0.05
"""Less processor time than this between two looks is none."""


class Watchdog:
    """Counts the looks at which a busy process was silent and idle: a laptop's sleep counts for nothing."""

    def __init__(self, pid: int, *, interval_s: float = 5.0, silence_s: float = SILENCE_S) -> None:
        """Watch process `pid`, to be looked at each `interval_s`."""
        self.pid = pid
        self.interval_s = interval_s
        self.silence_s = silence_s
        self.hung = False
        self._longest_gap_s = 0.0
        self._heard_at = time.monotonic()
        self._heard_since_look = False
        self._idle_looks = 0
        self._cpu_s = 0.0

    def expect(self) -> None:
        """A request begins: the silence before it doesn't count."""
        self._heard_at = time.monotonic()
        self._idle_looks = 0

    def heard(self) -> None:
        """The process answered."""
        now = time.monotonic()
        self._longest_gap_s = max(self._longest_gap_s, now - self._heard_at)
        self._heard_at = now
        self._heard_since_look = True

    def is_hung(self) -> bool:
        """Look at the process, which should be working."""
        cpu_s, waits_for_disk = self._activity()
        idle = not self._heard_since_look and cpu_s - self._cpu_s < IDLE_CPU_S and not waits_for_disk
        self._idle_looks = self._idle_looks + 1 if idle else 0
        self._cpu_s, self._heard_since_look = cpu_s, False
        patience_s = max(self.silence_s, SILENCE_FACTOR * self._longest_gap_s)
        self.hung = self._idle_looks * self.interval_s >= patience_s
        return self.hung

    def _activity(self) -> tuple[float, bool]:
        """Processor seconds so far, and whether it is reading from a disk just now."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            times = process.cpu_times()
            return times.user + times.system, process.status() == psutil.STATUS_DISK_SLEEP
        except psutil.Error:
            return self._cpu_s, True  # gone, which its pipe will say
