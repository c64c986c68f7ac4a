"""What the commands print: the answer on stdout, all else on stderr."""

import re
import sys
from typing import Any

# C0 without \t and \n, DEL, and C1: whatever a terminal takes for a command.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """A text without what a terminal would act on; line breaks and tabs stay."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """A text for one line of stderr."""
    return printable(" ".join(text.split()))


def note(text: str) -> None:
    """Tell the person something that is no part of the answer."""
    print(one_line(text), file=sys.stderr, flush=True)


def answer(text: str) -> None:
    """Print a piece of the answer at once. On a terminal, nothing in it acts."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def json_object(record: Any) -> None:
    """Print one JSON object: a struct, or a dict of plain values."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    sys.stdout.flush()
