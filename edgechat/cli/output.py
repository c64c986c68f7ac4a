"""What the commands print: the answer on stdout, all else on stderr."""

import re
import sys
import time
from typing import Any

# C0 without \t and \n, DEL, and C1: whatever a terminal takes for a command.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """A text without what a terminal would act on; line breaks and tabs stay."""
    return _CONTROL.sub("", text)


def well_formed(text: str) -> str:
    """A text from the command line: its bytes that are no UTF-8, which Python has as lone surrogates, become
    U+FFFD."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """A text for one line of stderr."""
    return printable(" ".join(text.split()))


LONGEST_WORD = 400
LONGEST_MESSAGE = 1500


def brief(text: str) -> str:
    """A text for one line of stderr that says enough: what a person or a file called something may be of
    any length, and its beginning and end tell which one it is."""
    line = " ".join(_shortened(word, LONGEST_WORD) for word in one_line(text).split(" "))
    return _shortened(line, LONGEST_MESSAGE)


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest // 2]}…{text[-end:]}"


def clipped(text: str, longest: int = 100) -> str:
    """What a model's file says of itself, for a table."""
    line = one_line(text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def note(text: str) -> None:
    """Tell the person something that is no part of the answer."""
    print(brief(text), file=sys.stderr, flush=True)


def answer(text: str) -> None:
    """Print a piece of the answer at once. On a terminal, nothing in it acts."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


class _Printed:
    """What this process has printed so far."""

    objects = 0


def json_object(record: Any) -> None:
    """Print one JSON object: a struct, or a dict of plain values."""
    import msgspec

    try:
        text = msgspec.json.encode(record)
    except UnicodeEncodeError:  # a path that is no UTF-8
        text = msgspec.json.encode(_well_formed(msgspec.to_builtins(record, str_keys=True)))
    _Printed.objects += 1
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def _well_formed(value: Any) -> Any:
    """Plain values, with all texts in them well-formed."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): _well_formed(one) for key, one in value.items()}
    return [_well_formed(one) for one in value] if isinstance(value, list | tuple) else value


def json_objects() -> int:
    """How many JSON objects this process has printed."""
    return _Printed.objects


class Status:
    """A line on the terminal that says what is being waited for, and goes away."""

    DELAY_S = 0.3
    """What is done sooner needs no line."""

    def __init__(self, shown: bool) -> None:
        """`shown`: False makes it silent."""
        self._shown = shown
        self._begun = time.monotonic()
        self._text = ""
        self._width = 0

    def show(self, text: str) -> None:
        """Replace the line."""
        self._text = text
        self.redraw()

    def redraw(self) -> None:
        """Draw the line, if it is time; to be called after DELAY_S too."""
        if self._shown and self._text and time.monotonic() - self._begun >= self.DELAY_S:
            self._write("\r" + self._text.ljust(self._width))
            self._width = len(self._text)

    def clear(self) -> None:
        """Take the line away."""
        self._text = ""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
