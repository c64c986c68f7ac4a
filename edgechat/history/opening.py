"""Opening the saved conversations so that the app always starts, whatever became of the file."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgechat.history.errors import DamagedHistory, HistoryError, NewerHistory
from edgechat.history.migrations import MIGRATIONS
from edgechat.history.store import HistoryStore


@dataclass(frozen=True, slots=True)
class OpenedHistory:
    """A store that works, and what the person should know about it."""

    store: HistoryStore
    notice: str = ""


def open_history(path: Path, *, clock: Callable[[], float] = time.time) -> OpenedHistory:
    """Open the database.

    A damaged one is set aside; one that a newer edgechat made stays as it is, and another file is used;
    where nothing can be written, conversations are kept in memory, with those that can be read.
    """
    try:
        return _open(path, clock)
    except NewerHistory as error:
        return _beside(path, error, clock)
    except HistoryError as error:
        return _in_memory(path, error, clock)


def set_aside(path: Path, now: float) -> Path:
    """Rename a database with its log, never over another file.

    Raises:
        OSError: it can't be renamed.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    number = 0
    while True:
        suffix = f"-{number}" if number else ""
        target = path.with_name(f"{path.stem}.damaged-{stamp}{suffix}{path.suffix}")
        if not target.exists():
            break
        number += 1
    path.rename(target)
    for tail in ("-wal", "-shm"):
        log = path.with_name(path.name + tail)
        if log.exists():
            log.rename(target.with_name(target.name + tail))
    return target


def _open(path: Path, clock: Callable[[], float]) -> OpenedHistory:
    """Open one file; a damaged one makes room for a new one.

    Raises:
        HistoryError: it can't be used.
    """
    try:
        return OpenedHistory(HistoryStore(path, clock=clock))
    except DamagedHistory as error:
        try:
            aside = set_aside(path, clock())
        except OSError as trouble:
            raise HistoryError(f"{error}, and can't be set aside: {trouble.strerror or trouble}") from trouble
        return OpenedHistory(
            HistoryStore(path, clock=clock), f"{error}. It is kept as {aside.name} beside a new, empty one."
        )


def _beside(path: Path, error: NewerHistory, clock: Callable[[], float]) -> OpenedHistory:
    """Use a file of this version's own: what the newer edgechat goes on with is not touched."""
    own = path.with_name(f"{path.stem}.v{len(MIGRATIONS)}{path.suffix}")
    try:
        opened = _open(own, clock)
    except HistoryError as trouble:
        return _in_memory(own, trouble, clock)
    used = f"{error}. Until then conversations are saved in {own.name} beside it."
    return OpenedHistory(opened.store, f"{used} {opened.notice}".strip())


def _in_memory(path: Path, error: Exception, clock: Callable[[], float]) -> OpenedHistory:
    notice = f"Nothing will be saved: {error}"
    try:
        store = HistoryStore(None, clock=clock, copy_of=path)
    except HistoryError:
        return OpenedHistory(HistoryStore(None, clock=clock), notice)
    return OpenedHistory(store, f"{notice}. Earlier conversations can be read." if store.latest() else notice)
