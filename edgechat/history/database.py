"""The file that conversations are in: opening it, and transactions that are whole or not at all."""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from edgechat.history.errors import DamagedHistory, HistoryError, NewerHistory
from edgechat.history.index import ensure_index, has_fts5
from edgechat.history.migrations import migrate

BUSY_TIMEOUT_S = 5.0
"""How long a write waits for another app's."""
CHECKED_SIZE = 32 * 2**20
"""A database up to this many bytes is checked whole when it is opened."""
COPIED_SIZE = 256 * 2**20
"""A database up to this many bytes is copied into memory, where it can be read but not written."""


class Database:
    """One SQLite database, which several apps may use at once. Every method may be called from any thread."""

    def __init__(self, path: Path | None, *, copy_of: Path | None = None) -> None:
        """Open the database, and make or upgrade it.

        Args:
            path: the file; None keeps everything in memory, for as long as the app runs.
            copy_of: of a database in memory, the file that it begins with; that is only read.

        Raises:
            DamagedHistory: the file is no database of ours.
            NewerHistory: a newer edgechat made it.
            HistoryError: it can't be opened.
        """
        self.path = path
        self._lock = threading.RLock()
        with self._errors():
            self.connection = _connect(path)
        try:
            with self._errors():
                if copy_of is not None:
                    _copy(copy_of, self.connection)
                _prepare(self.connection, path)
                self.full_text = has_fts5(self.connection)
                ensure_index(self.connection, available=self.full_text)
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """Close it; more than once does no harm."""
        with self._lock:
            self.connection.close()

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """One write, whole or not at all; IMMEDIATE waits for another app's before it reads anything.

        Inside another one of the same thread it is a part of that.

        Raises:
            HistoryError: it can't be done.
        """
        with self._lock, self._errors():
            is_part = self.connection.in_transaction
            if is_part:
                yield self.connection
                return
            self.connection.execute(begin)
            try:
                yield self.connection
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        """Reads that see one state of the database.

        Raises:
            HistoryError: it can't be read.
        """
        return self.transaction("BEGIN")

    def empty_log(self) -> None:
        """Bring the write-ahead log into the database and empty it, where no other app reads from it now.

        Raises:
            HistoryError: it can't be written.
        """
        with self._lock, self._errors():
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as ours: one line with what to do."""
        where = "the conversations" if self.path is None else str(self.path)
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError, OSError) as error:
            hint = "check that the disk has room and the folder can be written"
            if "locked" in str(error):
                hint = "another edgechat holds it: close it and try again"
            what = (error.strerror if isinstance(error, OSError) else "") or str(error)
            raise HistoryError(f"{where} can't be used ({what}): {hint}") from error
        except sqlite3.DatabaseError as error:
            raise DamagedHistory(f"{where} is damaged ({error})") from error


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made before SQLite sees it, so that at no moment others can read it; -wal and -shm follow its mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600))
    return sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # transactions begin where we say so
        check_same_thread=False,
    )


def _copy(path: Path, connection: sqlite3.Connection) -> None:
    """Fill a database in memory from a file that is only read, whatever disk it is on."""
    if path.stat().st_size > COPIED_SIZE:
        raise OSError("too large for the memory")
    # Where the log beside the file can't be made or read, the file is taken as it is.
    for mode in ("mode=ro", "immutable=1"):
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as source:
                source.backup(connection)
        except sqlite3.OperationalError:
            if mode == "immutable=1":
                raise
        else:
            return


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    # What is deleted is overwritten with zeros.
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    _write_ahead(db)
    # With WAL, NORMAL survives the process's death at any moment; a power cut may cost the last turns.
    db.execute("PRAGMA synchronous = NORMAL")
    if path is not None and path.stat().st_size <= CHECKED_SIZE:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    try:
        migrate(db)
    except ValueError as error:
        raise NewerHistory(f"{path} was made by a newer edgechat ({error}): update edgechat") from error


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to WAL; SQLite doesn't wait here for another app that does the same."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
