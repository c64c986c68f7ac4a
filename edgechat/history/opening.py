"""Opening the saved conversations so that the app always starts, whatever became of the file."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgechat.history.errors import DamagedHistory, HistoryError
from edgechat.history.store import HistoryStore


@dataclass(frozen=True, slots=True)
class OpenedHistory:
    """A store that works, and what the person should know about it."""

    store: HistoryStore
    notice: str = ""


def open_history(path: Path, *, clock: Callable[[], float] = time.time) -> OpenedHistory:
    """Open the database; a damaged one is set aside, one that can't be opened is replaced by memory."""
    try:
        return OpenedHistory(HistoryStore(path, clock=clock))
    except DamagedHistory as error:
        try:
            aside = set_aside(path, clock())
            return OpenedHistory(
                HistoryStore(path, clock=clock),
                f"{error}. It is kept as {aside.name} beside a new, empty one.",
            )
        except (HistoryError, OSError) as second:
            return _in_memory(second, clock)
    except HistoryError as error:
        return _in_memory(error, clock)


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


def _in_memory(error: Exception, clock: Callable[[], float]) -> OpenedHistory:
    return OpenedHistory(HistoryStore(None, clock=clock), f"{error}. Conversations are not saved until then.")
