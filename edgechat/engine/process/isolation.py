"""Keeping what native code does inside the engine's process."""

import contextlib
import ctypes
import faulthandler
import io
import os
import resource
import signal
import sys
from dataclasses import dataclass
from typing import IO

LOG_BYTES = 2 * 2**20
"""Longest log; of a longer one, the end is kept."""
KEPT_LOG_BYTES = 2**18

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Channel:
    """The host's way to its client: the only descriptors that lead out of the process."""

    requests: IO[bytes]
    events: IO[bytes]


def enter(parent: int) -> Channel:
    """Become a process that runs native code for a client, and can do it no harm.

    Args:
        parent: the client's process.
    """
    channel = isolate()
    ignore_interrupts()
    die_with_parent(parent)
    crash_quickly()
    volunteer_for_oom()
    return channel


def isolate() -> Channel:
    """Take the standard streams away from all other code: input is empty, output goes to the log.

    Standard error must be a log that is appended to.
    """
    requests = os.fdopen(os.dup(0), "rb", buffering=io.DEFAULT_BUFFER_SIZE)
    events = os.fdopen(os.dup(1), "wb", buffering=io.DEFAULT_BUFFER_SIZE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    faulthandler.enable(file=2)
    return Channel(requests, events)


def ignore_interrupts() -> None:
    """Ctrl-C in the terminal is the client's to act on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """On Linux, have the kernel end this process when the thread that started it ends.

    The end of its input ends it too, on every system; this is for when nobody can see that end.

    Args:
        parent: the client's process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was told
            os._exit(0)


def crash_quickly() -> None:
    """No core file: writing gigabytes of weights to the disk would keep the person waiting."""
    if not os.environ.get("EDGECHAT_DEBUG"):
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_CORE)
            resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def volunteer_for_oom() -> None:
    """Where memory runs out, let the kernel end the engine and not the app."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < 500:
            file.seek(0)
            file.write("500")


def bound_log() -> None:
    """Cut the log where it has grown too long."""
    size = os.fstat(2).st_size
    if size > LOG_BYTES:
        end = os.pread(2, KEPT_LOG_BYTES, size - KEPT_LOG_BYTES)
        os.ftruncate(2, 0)
        os.write(2, b"[...]\n" + end.partition(b"\n")[2])
