"""One process at a time: a lock that the system takes back when its holder dies."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.2


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], object]) -> Iterator[bool]:
    """Hold a lock file, which is removed at the end.

    Args:
        path: in a folder that exists.
        on_wait: called once, where another process holds it.

    Yields:
        Whether another process held it before.
    """
    waited = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _take(handle):
            if _is_still(handle, path):
                break
            os.close(handle)  # its last holder removed it: the next one is a new file
            continue
        os.close(handle)
        if not waited:
            waited = True
            on_wait()
        time.sleep(LOOK_S)
    try:
        yield waited
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(handle)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


@contextmanager
def try_exclusive(path: Path) -> Iterator[bool]:
    """Hold a lock file if nobody else does; yields whether that is so."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    mine = _take(handle) and _is_still(handle, path)
    try:
        yield mine
    finally:
        if mine:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(handle)
