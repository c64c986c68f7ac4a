"""Starting the engine's process. Light, so that it can be done before anything heavy is imported."""

import contextlib
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from edgechat import huge_pages, paths
from edgechat.engine.process.obituary import count_oom_kills

KEPT_LOGS = 10

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A started host, not yet spoken to."""

    process: "subprocess.Popen[bytes]"
    log: Path
    oom_kills: int
    """How often the system had killed a process for memory before this one was started."""

    def discard(self) -> None:
        """End the process, if it still runs, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def spawn_host() -> HostProcess:
    """Start a host; it waits for a Load.

    Call it from a thread that lives as long as the host shall: on Linux the host dies with it.

    Raises:
        UsageError: the log's folder can't be made.
        OSError: the process can't be started.
    """
    log = _new_log()
    oom_kills = count_oom_kills()
    handle = paths.open_private(log, os.O_RDWR | os.O_APPEND | os.O_TRUNC)  # appended to, as it may be cut
    try:
        process = subprocess.Popen(
            # -P: a folder in which a person happens to be is no place to import from
            [sys.executable, "-P", "-m", "edgechat.engine.process.host", "--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            # OpenMP's wait policy stays libgomp's own: spin some milliseconds, then sleep. Sleeping sooner
            # costs a fifth of the speed on an idle machine; on a busy one the engine takes fewer threads.
            # An abort would else start a debugger, where there is one.
            env=huge_pages.environment() | {"GGML_NO_BACKTRACE": "1"},
            start_new_session=True,  # Ctrl-C in the terminal is the client's
        )
    finally:
        os.close(handle)
    return HostProcess(process, log, oom_kills)


def _new_log() -> Path:
    """A path for the next log; the oldest logs are removed."""
    folder = paths.log_dir()
    logs = sorted(folder.glob("engine-*.log"), key=_modified)
    for old in logs[: max(0, len(logs) - KEPT_LOGS + 1)]:
        old.unlink(missing_ok=True)
    return folder / f"engine-{os.getpid()}-{next(_numbers)}.log"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
