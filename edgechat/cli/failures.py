"""How a run of the command line ends when it fails: the line on stderr, and the exit code."""

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from typer.exceptions import TyperException

from edgechat import errors
from edgechat.cli.output import brief, json_object
from edgechat.errors import ExitCode

_PRINTING = ("edgechat.cli.", "rich.", "typer.")
"""Modules that print; files are written by functions of other modules."""
INTERRUPTED = "interrupted"
"""What `--json` says of Ctrl-C, of which nothing is said on stderr."""
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


class ReaderGone(Exception):
    """Nobody reads our output any more (`| head`): a reason to stop, not a failure."""


@contextlib.contextmanager
def told_from_gone_readers() -> Iterator[None]:
    """Make of a pipe that nobody reads a `ReaderGone`; Typer would end with a failure's code.

    Raises:
        ReaderGone: nobody reads.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


def report(error: BaseException, *, as_json: bool = False, arguments: Sequence[str] = ()) -> int:
    """Say what went wrong, in one line on stderr.

    Args:
        error: what ended the run.
        as_json: on stdout, an object tells the same: {"error": {"code": ..., "message": ...}}.
        arguments: the command line.

    Returns:
        The exit code.
    """
    code, message = _verdict(error, arguments)
    if os.environ.get("EDGECHAT_DEBUG") and message:
        traceback.print_exception(error, file=sys.stderr)
    if page := _help_page(error):
        print(page, file=sys.stderr)
    elif message:
        print(f"edgechat: {brief(message)}", file=sys.stderr)
    if as_json and (message or code == ExitCode.INTERRUPTED):
        with contextlib.suppress(OSError):  # the person was told
            json_object({"error": {"code": int(code), "message": brief(message) or INTERRUPTED}})
    if isinstance(error, ReaderGone | BrokenPipeError) or not _can_be_written():
        _close_output()
    return code


def told_of(error: Exception) -> dict[str, object]:
    """The code and the message of an error, as `--json` tells them."""
    ours = errors.from_exception(error)
    code, text = (ExitCode.BUG, repr(error)) if ours is None else (ours.code, told(ours))
    return {"code": int(code), "message": brief(text)}


def _verdict(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code, and what to say; "" where there is nothing to say."""
    if isinstance(error, SystemExit):
        return (error.code, "") if isinstance(error.code, int) else (ExitCode.DONE, "")
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ExitCode.INTERRUPTED, ""
    if isinstance(error, ReaderGone | BrokenPipeError):
        return ExitCode.DONE, ""
    if isinstance(error, TyperException):
        from edgechat.cli import wrong_usage

        return ExitCode.USAGE, wrong_usage.told(error, arguments)
    if isinstance(error, Exception) and (known := _known(error)) is not None:
        return known
    return ExitCode.BUG, f"a bug of edgechat: {type(error).__name__}: {error}. {_write_trace(error)}"


def _known(error: Exception) -> tuple[int, str] | None:
    """The exit code and what to say of an error that is no bug; None for one that is."""
    ours = errors.from_exception(error)
    if not isinstance(error, OSError) or not _is_of_output(error):
        return None if ours is None else (ours.code, told(ours))
    code = ExitCode.USAGE if ours is None else ours.code
    why = str(ours or error.strerror or error)
    return code, f"standard output can't be written: {why[:1].lower()}{why[1:]}"


def _is_of_output(error: OSError) -> bool:
    """Whether it is of standard output, which its errors don't name."""
    if error.filename is not None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
    is_of_writing = error.errno in _OF_WRITING and last.startswith(_PRINTING)
    return is_of_writing or not _can_be_written()


def _can_be_written() -> bool:
    """Whether standard output takes what it was given so far; what it did not take is kept for later."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def told(error: errors.EdgechatError) -> str:
    """What an error says, with what to do about it where that is apart."""
    advice = getattr(error, "advice", "")
    return f"{error}: {advice}" if advice else str(error)


def _help_page(error: BaseException) -> str:
    """What to show of a command that lacks its verb; "" for any other error."""
    if not isinstance(error, TyperException):
        return ""
    from edgechat.cli import wrong_usage

    return wrong_usage.help_page(error)


def _write_trace(error: BaseException) -> str:
    """Write the traceback into the log folder, and say where."""
    from edgechat import __version__, paths

    try:
        path: Path = paths.log_dir() / f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        text = "".join(traceback.format_exception(error))
        paths.write_atomic(path, f"edgechat {__version__}, Python {sys.version}\n{text}".encode())
    except (OSError, errors.EdgechatError) as trouble:
        return f"Its trace could not be written ({trouble}); EDGECHAT_DEBUG=1 shows it"
    return f"Its trace is in {path}"


def _close_output() -> None:
    """Point stdout at nothing, so that Python's own flush at the end stays quiet too."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
