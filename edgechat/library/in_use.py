"""Which processes have a model loaded."""

import os
from collections.abc import Iterable
from pathlib import Path

PROCESSES = Path("/proc")


def users_of(files: Iterable[Path]) -> tuple[int, ...]:
    """The processes that have one of these files mapped into memory, as an engine has its weights.

    Returns:
        Their numbers, as far as the system tells: Linux does, of the person's own processes.
    """
    names = {os.path.realpath(file) for file in files}
    found = []
    for process in _processes():
        try:
            maps = (process / "maps").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:  # somebody else's, or gone meanwhile
            continue
        # address, permissions, offset, device, inode, and the file's name, which may have spaces
        mapped = (line.split(maxsplit=5) for line in maps.splitlines())
        if any(len(fields) == 6 and fields[5] in names for fields in mapped):
            found.append(int(process.name))
    return tuple(found)


def _processes() -> list[Path]:
    try:
        return sorted(path for path in PROCESSES.iterdir() if path.name.isdecimal())
    except OSError:
        return []
