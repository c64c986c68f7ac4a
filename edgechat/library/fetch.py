"""Downloads one file, whatever the connection does: it goes on where it was, and checks what came.

The policy alone: who opens the connection is given, so that tests drive it without a network.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from edgechat.errors import NetworkError
from edgechat.units import bytes_text

READ_BYTES = 2**20


class Transient(Exception):
    """Trouble that may be over when one asks again."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        """`what` is shown; `wait_s` is how long the server asks to wait."""
        super().__init__(what)
        self.wait_s = wait_s


class Cancelled(Exception):
    """The download was stopped from outside; what is there stays for the next time."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to go on asking."""

    tries: int = 5
    """In a row, without a byte coming."""
    first_wait_s: float = 1.0
    """Doubled from one try to the next."""
    longest_wait_s: float = 120.0
    """A server that asks for more is taken at its word, and left."""
    stall_s: float = 30.0
    stall_bytes: int = 4096
    """Fewer bytes than this within `stall_s`: ask again, perhaps another machine answers."""

    def wait(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True)
class Stream:
    """A connection that brings a file."""

    start: int
    """Where in the file it begins: 0 where the server doesn't go on in the middle."""
    total: int | None
    """Size of the whole file; None where the server doesn't say."""
    chunks: Iterator[bytes]


class Progress(Protocol):
    """What is told while a file comes."""

    def advance(self, name: str, count: int) -> None:
        """So many bytes more; fewer, where the download begins again."""

    def found(self, name: str, count: int) -> None:
        """So many bytes more that were here before, and only had to be read."""

    def note(self, text: str) -> None:
        """Something happened."""


Open = Callable[[int], AbstractContextManager[Stream]]


@dataclass(slots=True)
class Fetch:
    """One download into one file."""

    name: str
    """For messages."""
    partial: Path
    """Where it is written; what is there already is the beginning of it."""
    size: int | None
    sha256: str | None
    open: Open
    """Connects from a place in the file on.

    Raises:
        Transient: not now.
        EdgechatError: never.
    """
    progress: Progress
    cancelled: threading.Event
    patience: Patience = Patience()

    def run(self) -> str:
        """Download until all is there and right.

        Returns:
            The SHA-256 of the file.

        Raises:
            NetworkError: the connection failed too often, or what came is not what was promised.
            Cancelled: it was stopped.
            OSError: it can't be written.
        """
        begun_before = self.partial.exists()
        digest = self._attempt()
        if self.sha256 is None or digest == self.sha256:
            return digest
        if begun_before:
            # What an earlier run left may have been damaged since, as by a power cut.
            self.progress.note(f"{self.name}: what was here before was damaged; it begins again")
            self.progress.advance(self.name, -self.partial.stat().st_size)
            self.partial.unlink()
            digest = self._attempt()
            if digest == self.sha256:
                return digest
        self.partial.unlink()
        raise NetworkError(
            f"{self.name} came with a wrong checksum ({digest[:12]}, not {self.sha256[:12]}) and was "
            "removed: pull it again, and if that fails too, tell whoever runs the hub or mirror"
        )

    def _attempt(self) -> str:
        with self.partial.open("ab") as file:
            at, digest = self._begin(file)
            failures = 0
            while self.size is None or at < self.size:
                before = at
                try:
                    with self.open(at) as stream:
                        if stream.start != at:
                            at, digest = self._restart(file, at), hashlib.sha256()
                        if self.size is None:
                            self.size = stream.total
                        for chunk in self._watched(stream.chunks):
                            file.write(chunk)
                            digest.update(chunk)
                            at += len(chunk)
                            self.progress.advance(self.name, len(chunk))
                    if self.size is None:
                        break  # nobody knows better than the end of the stream
                    if at < self.size:
                        raise Transient("the connection was cut")
                except Transient as trouble:
                    failures = 1 if at > before else failures + 1
                    self._pause(trouble, failures)
            if self.size is not None and at > self.size:
                self._restart(file, at)
                raise NetworkError(
                    f"{self.name} is longer than the {self.size} bytes that were promised: pull it again"
                )
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _begin(self, file: IO[bytes]) -> "tuple[int, hashlib._Hash]":
        """Where the file ends so far, and the hash up to there."""
        digest = hashlib.sha256()
        at = file.tell()
        if self.size is not None and at > self.size:
            file.truncate(0)
            return 0, digest
        if at:
            with self.partial.open("rb") as there:
                while piece := there.read(READ_BYTES):
                    if self.cancelled.is_set():
                        raise Cancelled
                    digest.update(piece)
                    self.progress.found(self.name, len(piece))
            self.progress.note(f"{self.name}: {bytes_text(at)} are here from before; it goes on with that")
        return at, digest

    def _restart(self, file: IO[bytes], at: int) -> int:
        file.truncate(0)
        self.progress.advance(self.name, -at)
        return 0

    def _watched(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks, until they come too slowly."""
        since, count = time.monotonic(), 0
        for chunk in chunks:
            if self.cancelled.is_set():
                raise Cancelled
            yield chunk
            count += len(chunk)
            now = time.monotonic()
            if now - since >= self.patience.stall_s:
                if count < self.patience.stall_bytes:
                    raise Transient(f"only {count} bytes came in {now - since:.0f} s")
                since, count = now, 0

    def _pause(self, trouble: Transient, failures: int) -> None:
        wait_s = self.patience.wait(failures) if trouble.wait_s is None else trouble.wait_s
        if failures >= self.patience.tries or wait_s > self.patience.longest_wait_s:
            later = f"in {wait_s:.0f} s" if trouble.wait_s is not None else "later"
            raise NetworkError(
                f"{self.name}: {trouble}; what came so far is kept: pull it again {later} to go on"
            )
        self.progress.note(f"{self.name}: {trouble}; trying again in {wait_s:.0f} s")
        if self.cancelled.wait(wait_s):
            raise Cancelled
