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
        (quantize.NoSuchDevice, UnsupportedError),
        (quantize.NativeFailure, EngineCrashedError),
        (quantize.QuantizeError, UsageError),
        (MemoryError, ResourceError),
    )
    if isinstance(error, EdgechatError):
        return error
    if isinstance(error, OSError):
        kind_of_os = _of_system(error)
        return None if kind_of_os is None else kind_of_os(_system_error(error))
    for kind, ours in kinds:
        if isinstance(error, kind):
            return ours(str(error) or kind.__name__)
    return None


# What a file system answers that only it can. Of the rest, what names a file is the file system's too.
_RESOURCES = ("ENOSPC", "EDQUOT", "ENOMEM", "EMFILE", "ENFILE", "EFBIG")
_NOT_THERE = ("ENOENT", "ENOTDIR", "ELOOP", "ENXIO", "ENODEV", "EIO", "ESTALE", "EREMOTEIO", "ENOMEDIUM")
_NOT_ALLOWED = ("ENAMETOOLONG", "EACCES", "EPERM", "EROFS", "EISDIR", "EEXIST", "ENOTEMPTY", "ETXTBSY")
_BY_ERRNO: dict[int, type[EdgechatError]] = {
    getattr(errno, name): kind
    for kind, names in (
        (ResourceError, _RESOURCES),
        (NotFoundError, _NOT_THERE),
        (UsageError, _NOT_ALLOWED),
    )
    for name in names
    if hasattr(errno, name)
}


def _of_system(error: OSError) -> type[EdgechatError] | None:
    """The error of ours that the file system's amounts to; None for one that is about something else."""
    if isinstance(error, FileNotFoundError):  # some are raised without a number
        return NotFoundError
    found = _BY_ERRNO.get(error.errno or 0)
    return UsageError if found is None and error.filename is not None else found


def _system_error(error: OSError) -> str:
    """What the system says, behind the file that it says it of."""
    if not error.strerror:
        return str(error)
    what = error.strerror[:1].lower() + error.strerror[1:]
    return what if error.filename is None else f"{error.filename}: {what}"
