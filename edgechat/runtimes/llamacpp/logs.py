"""llama.cpp's log: kept in memory, never on the terminal."""

import ctypes
import re
from collections import deque
from functools import cache

from edgechat.runtimes.llamacpp import abi

DEBUG, ERROR, CONTINUED = 1, 4, 5
CAPACITY = 2000
LINE_LENGTH = 500

# What says only that something went wrong, after the line that says what.
EMPTY_ERRORS = (
    "failed to load model",
    "failed to initialize the context",
    "failed to decode",
    "exiting due to",
)


class Log:
    """The last lines that llama.cpp logged."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Keep at most `capacity` lines."""
        self._lines: deque[tuple[int, str]] = deque(maxlen=capacity)
        self._skip = False

    def add(self, level: int, text: str) -> None:
        """One call of llama.cpp's: a line, or the rest of the one before."""
        if level == CONTINUED:
            if self._lines and not self._skip:
                last_level, last = self._lines[-1]
                self._lines[-1] = (last_level, (last + text)[:LINE_LENGTH])
            return
        self._skip = level <= DEBUG
        if not self._skip:
            self._lines.append((level, text[:LINE_LENGTH]))

    def clear(self) -> None:
        """Forget what was logged."""
        self._lines.clear()

    @property
    def lines(self) -> list[str]:
        """What was logged, oldest first, without debugging."""
        return [line for _, text in self._lines for line in text.splitlines() if line.strip()]

    @property
    def errors(self) -> list[str]:
        """The errors that were logged, oldest first, without the C functions that logged them."""
        return [_message(text) for level, text in self._lines if level == ERROR]

    def last_error(self) -> str:
        """The last error that says what went wrong, without the C function that logged it; "" for none."""
        errors = self.errors
        telling = [text for text in errors if text and not text.startswith(EMPTY_ERRORS)]
        return (telling or errors or [""])[-1]


@cache
def _installed() -> tuple[Log, object]:
    log = Log()

    @abi.llama().llama_log_callback  # type: ignore[untyped-decorator]
    def keep(level: int, text: bytes | None, _: object) -> None:
        if level != DEBUG and text:
            log.add(level, text.decode("utf-8", "replace"))

    return log, keep  # the callback lives as long as llama.cpp may call it


@cache
def _start() -> None:
    """Start llama.cpp and its backends, which log while they look for their devices."""
    abi.llama().llama_backend_init()
    if abi.function("ggml_backend_reg_count", ctypes.c_size_t)() == 0:
        abi.function("ggml_backend_load_all", None)()


def capture() -> Log:
    """The process's log; from here on llama.cpp logs into it alone. Starts llama.cpp the first time.

    To be called before each load: importing llama-cpp-python's high-level class redirects the log.

    Raises:
        UnsupportedError: llama-cpp-python is not installed, or of another version.
    """
    log, callback = _installed()
    abi.llama().llama_log_set(callback, ctypes.c_void_p(None))
    _start()
    return log


def _message(text: str) -> str:
    """A log line without "function: " and without line breaks."""
    line = " ".join(text.split())
    line = re.sub(r"^[A-Za-z_][\w:]*: (?=\S)", "", line)
    return re.sub(r"^error loading model: ", "", line).strip()
