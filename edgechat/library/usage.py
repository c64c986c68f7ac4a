"""When a model was last loaded: an empty file for each, whose time says it."""

import contextlib
import hashlib
import os
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
    try:
        return _mark(path).stat().st_mtime
    except (OSError, EdgechatError):
        return None


def forget_use(path: Path) -> None:
    """Forget about a model that is removed."""
    with contextlib.suppress(OSError, EdgechatError):
        _mark(path).unlink()


def _mark(path: Path) -> Path:
    from edgechat import paths

    key = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return paths.state_dir() / FOLDER / key
