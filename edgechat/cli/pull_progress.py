"""How a download is shown: bars with speed and time left on a terminal, a line now and then elsewhere."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgechat.cli.output import note, one_line
from edgechat.units import bytes_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from edgechat.library.choose import RemoteFile
    from edgechat.library.pull import PullProgress

EVERY_S = 10.0


def progress_for(quiet: bool) -> "PullProgress":
    """What fits standard error."""
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


class Silent:
    """Says nothing."""

    def begin(self, files: "Sequence[RemoteFile]") -> None:
        """Nothing."""

    def advance(self, name: str, count: int) -> None:
        """Nothing."""

    def found(self, name: str, count: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines(Silent):
    """A line every ten seconds, for logs."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._total = self._done = 0
        self._shown = time.monotonic()
        self._lock = threading.Lock()

    def begin(self, files: "Sequence[RemoteFile]") -> None:
        """Learn how much will come."""
        self._total = sum(file.size or 0 for file in files)

    def advance(self, name: str, count: int) -> None:
        """Count, and say so if it is time."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._shown < EVERY_S:
                return
            self._shown = now
        share = f" of {bytes_text(self._total)}" if self._total else ""
        note(f"{bytes_text(max(0, self._done))}{share}")

    def found(self, name: str, count: int) -> None:
        """As `advance`."""
        self.advance(name, count)

    def note(self, text: str) -> None:
        """Say it."""
        note(text)


class Bars(Silent):
    """A bar for each file."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        from rich.console import Console

        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def begin(self, files: "Sequence[RemoteFile]") -> None:
        """Show the bars."""
        from rich import progress

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=self._console,
        )
        for file in files:
            self._tasks[file.name] = self._progress.add_task(one_line(file.name), total=file.size)
        self._progress.start()

    def advance(self, name: str, count: int) -> None:
        """Move a bar."""
        if self._progress is not None:
            self._progress.advance(self._tasks[name], count)

    def found(self, name: str, count: int) -> None:
        """Move a bar; the speed is that of what follows."""
        if self._progress is not None:
            task = self._tasks[name]
            self._progress.reset(task, completed=int(self._progress.tasks[task].completed) + count)

    def note(self, text: str) -> None:
        """Say it above the bars."""
        self._console.print(one_line(text), markup=False, highlight=False)

    def end(self) -> None:
        """Leave the bars as they are."""
        if self._progress is not None:
            self._progress.stop()
