"""When a model was last loaded: an empty file for each, whose time says it."""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from edgechat.errors import EdgechatError

FOLDER = "last-used"


def record_use(path: Path) -> None:
    """Note that a model is being loaded now; what can't be noted is no reason to fail."""
    with contextlib.suppress(OSError, EdgechatError):
        mark = _mark(path)
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)


def last_use(path: Path) -> float | None:
    """When the model was last loaded, in seconds since 1970; None if it never was, as far as is known."""
    return last_uses([path])[0]


def last_uses(models: Iterable[Path]) -> list[float | None]:
    """When each was last loaded."""
    try:
        folder = _folder()
    except EdgechatError:
        return [None for _ in models]
    return [_time_of(folder / _key(path)) for path in models]


def forget_use(path: Path) -> None:
    """Forget about a model that is removed."""
    with contextlib.suppress(OSError, EdgechatError):
        _mark(path).unlink()


def _mark(path: Path) -> Path:
    return _folder() / _key(path)


def _folder() -> Path:
    from edgechat import paths

    return paths.state_dir() / FOLDER


def _key(path: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]


def _time_of(mark: Path) -> float | None:
    try:
        return mark.stat().st_mtime
    except OSError:
        return None
