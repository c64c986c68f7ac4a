"""Every error that a person can meet, and the exit code of each.

EdgechatError
├── UsageError             2    wrong options or arguments
├── NotFoundError          3    no such model, file or conversation
├── BrokenModelError       4    a broken or unsafe model file
├── ResourceError          5    not enough memory or disk
├── UnsupportedError       6    not supported here
├── NetworkError           7    network trouble, or offline
└── EngineCrashedError     8    the engine's process died

`models` and `quantize` have roots of their own, which `from_exception` maps onto this tree.
"""

import errno
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process answers to the shell."""

    DONE = 0
    """It worked."""
    BUG = 1
    """Our fault: please report it."""
    USAGE = 2
    """Wrong options or arguments."""
    NOT_FOUND = 3
    """No such model, file or conversation."""
    BROKEN_MODEL = 4
    """A broken or unsafe model file."""
    RESOURCES = 5
    """Not enough memory or disk."""
    UNSUPPORTED = 6
    """Not supported here."""
    NETWORK = 7
    """Network trouble, or offline."""
    ENGINE_CRASHED = 8
    """The engine's process died."""
    INTERRUPTED = 130
    """Ctrl-C."""


class EdgechatError(Exception):
    """Something that a person can do something about: what, where, and what to do, in one line."""

    code = ExitCode.BUG


class UsageError(EdgechatError):
    """Wrong options or arguments."""

    code = ExitCode.USAGE


class NotFoundError(EdgechatError):
    """No such model, file or conversation."""

    code = ExitCode.NOT_FOUND


class BrokenModelError(EdgechatError):
    """A broken or unsafe model file."""

    code = ExitCode.BROKEN_MODEL


class ResourceError(EdgechatError):
    """Not enough memory or disk."""

    code = ExitCode.RESOURCES


class UnsupportedError(EdgechatError):
    """Not supported here."""

    code = ExitCode.UNSUPPORTED


class NetworkError(EdgechatError):
    """Network trouble, or offline."""

    code = ExitCode.NETWORK


class EngineCrashedError(EdgechatError):
    """The engine's process died."""

    code = ExitCode.ENGINE_CRASHED


BY_CODE: dict[ExitCode, type[EdgechatError]] = {
    kind.code: kind
    for kind in (
        UsageError,
        NotFoundError,
        BrokenModelError,
        ResourceError,
        UnsupportedError,
        NetworkError,
        EngineCrashedError,
    )
}


def from_exception(error: Exception) -> EdgechatError | None:
    """The error of ours that `error` amounts to, or None where it can only be a bug."""
    from models import errors as model
    from quantize import errors as quantize

    kinds: tuple[tuple[type[Exception], type[EdgechatError]], ...] = (
        (model.BrokenModelFile, BrokenModelError),
        (model.ModelError, UnsupportedError),
        (quantize.SourceNotFound, NotFoundError),
        (quantize.NotEnoughDisk, ResourceError),
        (quantize.NotEnoughMemory, ResourceError),
        (quantize.NativeFailure, EngineCrashedError),
        (quantize.QuantizeError, UsageError),
        (FileNotFoundError, NotFoundError),
        (PermissionError, UsageError),
        (IsADirectoryError, UsageError),
        (NotADirectoryError, NotFoundError),
        (MemoryError, ResourceError),
    )
    if isinstance(error, EdgechatError):
        return error
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return ResourceError(_system_error(error))
    for kind, ours in kinds:
        if isinstance(error, kind):
            text = _system_error(error) if isinstance(error, OSError) else str(error)
            return ours(text or kind.__name__)
    return None


def _system_error(error: OSError) -> str:
    """What the system says, behind the file that it says it of."""
    if not error.strerror:
        return str(error)
    what = error.strerror[:1].lower() + error.strerror[1:]
    return what if error.filename is None else f"{error.filename}: {what}"
