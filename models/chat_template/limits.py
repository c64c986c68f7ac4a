"""Run a stranger's code on a thread of its own that ends when its time is over."""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_PATIENCE = 10
"""How many times its limit a thread may wait for the processor."""
_GRACE_S = 1.0
"""How long a thread may take to notice that its time is over."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one rendering may take, compilation included."""

    seconds: float = 2.0
    """Of processor time where the system tells a thread's, so that a busy machine fails no template."""
    output_chars: int = 2**20
    """Longest output, beyond the conversation's own text; no text in between may be longer either."""
    source_chars: int = 2**16
    """Longest template; those in use have 20,000 at most."""
    source_nodes: int = 2**13
    """Most nodes in a template's syntax tree."""
    memory_bytes: int = 2**25
    """Most memory for all values that the template makes; long conversations get more."""

    def __post_init__(self) -> None:
        """Refuse limits that nothing could meet.

        Raises:
            ValueError: a limit is not positive.
        """
        if min(self.seconds, self.output_chars, self.source_chars, self.memory_bytes) <= 0:
            raise ValueError(f"limits must be positive: {self!r}")


class OutOfTime(Exception):
    """The code did not end in its time."""


class _Stop(BaseException):
    """Raised inside the thread; no `except Exception` on its way catches it."""


class _Worker(threading.Thread, Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(name="chat-template", daemon=True)
        self._work = work
        self.result: list[T] = []
        self.error: Exception | None = None
        self._clock: int | None = None

    def run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self.result.append(self._work())
        except _Stop:
            pass
        except Exception as error:
            self.error = error

    def used(self) -> float | None:
        """Seconds of processor time; None where the system can't tell."""
        if self._clock is None:
            return None
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # it has just ended
            return None

    def stop(self) -> None:
        """Ask the interpreter to raise in this thread before its next instruction."""
        if self.ident is not None and self.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_Stop))


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work()`, or its exception.

    The work must make no single long call into native code: it is stopped between two instructions.

    Raises:
        OutOfTime: it took longer than `seconds`.
    """
    worker = _Worker(work)
    started = time.monotonic()
    worker.start()
    try:
        left = seconds
        while left > 0:
            worker.join(left)
            waited = time.monotonic() - started
            used = worker.used()
            left = min(seconds - (waited if used is None else used), _PATIENCE * seconds - waited)
            if not worker.is_alive():
                break
            left = max(left, 0.01) if left > 0 else 0.0
    finally:  # also when the caller is interrupted while it waits
        deadline = time.monotonic() + _GRACE_S
        while worker.is_alive() and time.monotonic() < deadline:
            worker.stop()  # once more each time: a finalizer may have swallowed it
            worker.join(0.05)
    if worker.result:
        return worker.result[0]
    if worker.error is not None:
        raise worker.error
    raise OutOfTime(f"it took longer than {seconds:g} s")
