"""Texts that commands read from files."""

import sys
from pathlib import Path

from edgechat.errors import NotFoundError, UsageError


def read_text(path: str, most_bytes: int, *, empty: str = "there is nothing in it") -> str:
    """A UTF-8 text.

    Args:
        path: a file, or "-" for standard input.
        most_bytes: longer ones are refused.
        empty: what is wrong with a text that is empty, for the message.

    Raises:
        NotFoundError: there is no such file, or it can't be read.
        UsageError: it is empty, too long, or not UTF-8.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(most_bytes + 1)
        else:
            with Path(path).expanduser().open("rb") as file:
                data = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{name}: there is no such file") from None
    except OSError as error:
        raise NotFoundError(f"{name} can't be read: {error.strerror or error}") from None
    if len(data) > most_bytes:
        raise UsageError(f"{name} is longer than {most_bytes >> 20} MiB: give a part of it")
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not a UTF-8 text (byte {error.start}): convert it first") from None
    if not content.strip():
        raise UsageError(f"{name} is empty: {empty}")
    return content
