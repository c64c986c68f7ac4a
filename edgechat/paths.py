"""Where our files live. EDGECHAT_HOME moves all of them into one folder."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Literal

from edgechat.errors import UsageError

Kind = Literal["config", "data", "cache", "state", "log"]

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def data_dir() -> Path:
    """The folder of what the person would miss: conversations, models."""
    return _folder("data")


def cache_dir() -> Path:
    """The folder of what can be made again."""
    return _folder("cache")


def state_dir() -> Path:
    """The folder of what is remembered between runs, such as the last model used."""
    return _folder("state")


def log_dir() -> Path:
    """The folder of the engine's log and of the traces of our bugs."""
    return _folder("log")


def config_file() -> Path:
    """The settings; neither the file nor its folder need exist."""
    return _tried("config") / "config.toml"


def history_file() -> Path:
    """The database of conversations; neither the file nor its folder need exist."""
    return _tried("data") / "history.db"


def models_dir() -> Path:
    """Our own folder for models; it need not exist."""
    return _tried("data") / "models"


def is_writable(kind: Kind) -> bool:
    """Whether our folder of this kind is there or can be made, and takes files: not so on read-only disks."""
    return os.access(_tried(kind), os.W_OK | os.X_OK)


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can read, with its parents.

    Raises:
        UsageError: it can't be made.
    """
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"can't make the folder {path} ({error.strerror or error}): "
            "set EDGECHAT_HOME to a folder that can be written"
        ) from error
    return path


def open_private(path: Path, flags: int) -> int:
    """A file descriptor of a file that only its owner can read; `flags` as for `os.open`."""
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), PRIVATE_FILE)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a reader sees the old content or the new, also after a power cut.

    Raises:
        OSError: it can't be written; the old content is as it was.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # made 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Make a rename in this folder durable, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _folder(kind: Kind) -> Path:
    """Our folder of this kind, made. What can be made again, or done without, has another place where the
    person's own can't be written: models answer on a read-only disk too.

    Raises:
        UsageError: it can't be made.
    """
    if kind in ("config", "data") or is_writable(kind):
        for folder in _place(kind):
            private_folder(folder)
        return _place(kind)[-1]
    return _stand_in(kind)


def _tried(kind: Kind) -> Path:
    """Our folder of this kind, made if it can be."""
    with contextlib.suppress(UsageError):
        for folder in _place(kind):
            private_folder(folder)
    return _place(kind)[-1]


def _stand_in(kind: Kind) -> Path:
    """A folder for temporary files that is this user's alone, whoever else may write beside it.

    Raises:
        UsageError: there is none.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    root = private_folder(Path(tempfile.gettempdir()) / f"edgechat-{user}")
    status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise UsageError(f"{root} is not yours alone: set EDGECHAT_HOME to a folder that can be written")
    return private_folder(root / kind)


def _place(kind: Kind) -> tuple[Path, ...]:
    """Where our folder of this kind is; before it what must be made private as well."""
    home = os.environ.get("EDGECHAT_HOME", "")
    if home:
        whole = Path(os.path.expanduser(home))
        return whole, whole / kind
    import platformdirs

    path = {
        "config": platformdirs.user_config_path,
        "data": platformdirs.user_data_path,
        "cache": platformdirs.user_cache_path,
        "state": platformdirs.user_state_path,
        "log": platformdirs.user_log_path,
    }[kind]("edgechat", appauthor=False)
    return (path,)
