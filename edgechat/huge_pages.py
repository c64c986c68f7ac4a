"""Huge pages for a model's weights: every token reads all of them, and translating addresses takes time.

Linux maps memory in pages of 4 KiB, and a core's prefetching ends at each one's border. Pages of 2 MiB are
given to memory that asks for them (`madvise`; "transparent huge pages"), never to a mapped file. llama.cpp
doesn't ask, but glibc's malloc does when its tunable `glibc.malloc.hugetlb` says so. So the engine is started
with it, and reads weights into memory instead of mapping them, as long as there is plenty.

Sources: Linux, Documentation/admin-guide/mm/transhuge.rst; glibc manual, "Memory Allocation Tunables" (2.35).
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
TUNABLES = "GLIBC_TUNABLES"
HUGETLB = "glibc.malloc.hugetlb"
FIRST_GLIBC = (2, 35)
"""That knows the tunable."""
PR_SET_THP_DISABLE = 41
"""Of linux/prctl.h."""


def available(root: Path = ROOT, libc: str | None = None) -> bool:
    """Whether a process that is started with `environment` gets its memory in huge pages.

    Args:
        root: where /sys is.
        libc: the C library's name and version; None asks it.
    """
    mode = _mode(root)
    return mode == "always" or (mode == "madvise" and _knows_tunable(_libc() if libc is None else libc))


def in_use(environ: Mapping[str, str] = os.environ, root: Path = ROOT, libc: str | None = None) -> bool:
    """Whether this process gets its memory in huge pages."""
    if _mode(root) == "always":
        return True
    return available(root, libc) and f"{HUGETLB}=1" in environ.get(TUNABLES, "").split(":")


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to start a process with that shall have its memory in huge pages.

    Tunables that a person set stay, this one among them. Where the C library doesn't know it nothing happens.
    """
    asked = [one for one in environ.get(TUNABLES, "").split(":") if one]
    if not any(one.startswith(f"{HUGETLB}=") for one in asked):
        asked.append(f"{HUGETLB}=1")
    return {**environ, TUNABLES: ":".join(asked)}


def settle() -> None:
    """Give this process no more of them; what lies in them stays there.

    Else the kernel goes on for minutes to gather small pages, those that were never touched among them: the
    process would grow by megabytes while it does nothing new.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def _mode(root: Path) -> str:
    """ "always", "madvise" or "never"; "" where there is no such thing, as on a Mac."""
    try:
        words = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text().split()
    except OSError:
        return ""
    return next((word[1:-1] for word in words if word.startswith("[")), "")


def _knows_tunable(libc: str) -> bool:
    name, _, version = libc.partition(" ")
    numbers = version.split(".")[:2]
    if name != "glibc" or not all(number.isdigit() for number in numbers):
        return False
    return tuple(int(number) for number in numbers) >= FIRST_GLIBC


def _libc() -> str:
    """Such as "glibc 2.36"; "" where it doesn't say."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):  # not on this system
        return ""
