"""Files in the making: beside the output, under a name that nobody takes for a finished model.

They end in `.partial` and carry the number of the process that writes them, so that what a killed process
left is told from what another one is working on.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"^\.(?P<output>.+)\.(?P<pid>\d+)-[0-9a-f]{8}\.partial$")


def partial_path(output: Path) -> Path:
    """A new name beside `output`, on the same file system."""
    return output.with_name(f".{output.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")


@contextmanager
def partial(output: Path) -> Iterator[Path]:
    """Such a path, whose file is gone afterwards unless it was renamed."""
    path = partial_path(output)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def remove_stale(output: Path) -> list[Path]:
    """Delete what dead processes left in the output's folder, of whatever output.

    Returns:
        What was deleted.
    """
    removed = []
    for path in output.parent.glob(".*.partial"):
        match = _NAME.match(path.name)
        if match is None or _is_writing(int(match["pid"]), path):
            continue
        with suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed


def _is_writing(pid: int, path: Path) -> bool:
    """Whether the process that the name tells of is still at it: it lives, and is older than the file."""
    import psutil

    try:
        return bool(psutil.Process(pid).create_time() <= path.stat().st_mtime + 1)
    except (psutil.Error, OSError):
        return False


def finish(path: Path, output: Path) -> None:
    """Flush a file to the disk and give it its name, in one step."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    path.replace(output)
    flush_folder(output.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder's names to the disk, where the system can do that."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
