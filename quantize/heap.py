"""Memory that was freed, given back to the system.

glibc keeps what is freed among what is not, and a run's peak would be the sum of what its parts once held.
"""

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Between one part of a run and the next, where the C library can do that; it takes some milliseconds."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
