"""Which conversations are open: one app at a time may go on with one.

A claim is a lock on one byte of a file beside the database, the byte of the conversation's number. The
system lets go of it when the process ends, however it ends. Claims of one process don't exclude each other.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class Claims:
    """The claims of this process; at most one conversation at a time."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the file, made when it is needed; None claims nothing, and all is granted."""
        self._path = path
        self._file: int | None = None
        self._claimed: int | None = None

    def claim(self, conversation_id: int) -> bool:
        """Claim a conversation, and let go of the one before.

        Returns:
            False where another app has it; the one before stays claimed then. Where the system can't lock,
            all is granted: better two apps on one conversation than none.
        """
        if conversation_id == self._claimed or not self._open():
            return True
        assert self._file is not None
        if not _lock(self._file, conversation_id):
            return False
        self.release()
        self._claimed = conversation_id
        return True

    @contextlib.contextmanager
    def alone(self, conversation_id: int) -> Iterator[bool]:
        """Keep a conversation from other apps for a moment, whatever else is claimed.

        Yields:
            False where another app has it. Where the system can't lock, True.
        """
        if conversation_id == self._claimed or not self._open():
            yield True
            return
        assert self._file is not None
        mine = _lock(self._file, conversation_id)
        try:
            yield mine
        finally:
            if mine:
                _unlock(self._file, conversation_id)

    def release(self) -> None:
        """Let go of the claimed conversation; without one it does nothing."""
        if self._file is not None and self._claimed is not None:
            _unlock(self._file, self._claimed)
        self._claimed = None

    def close(self) -> None:
        """Let go of everything; more than once does no harm."""
        self._claimed = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> bool:
        """Whether there is a file to lock bytes of."""
        if self._file is None and self._path is not None:
            with contextlib.suppress(OSError):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        return self._file is not None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int, byte: int) -> bool:
        os.lseek(file, byte, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int, byte: int) -> None:
        os.lseek(file, byte, os.SEEK_SET)
        with contextlib.suppress(OSError):
            msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: int, byte: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # another process has it: POSIX allows both errors
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(file: int, byte: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)
