"""The app in a pseudo-terminal of its own, for tests of the whole of it."""

import contextlib
import fcntl
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyte

from edgechat.history import HistoryStore, SavedMessage

COLUMNS, ROWS = 100, 40
PATIENCE_S = 120


class Terminal:
    """The app in a pseudo-terminal, and what it draws."""

    def __init__(
        self,
        home: Path,
        *options: str,
        program: tuple[str, ...] = ("-m", "edgechat"),
        term: str = "xterm-256color",
    ) -> None:
        self.database = home / "data" / "history.db"
        self.master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.modes = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            [sys.executable, *program, "chat", "--threads", "2", *options],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**os.environ, "EDGECHAT_HOME": str(home), "TERM": term},
            start_new_session=True,
        )
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.output = b""
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self.master, 65536):
                with self._lock:
                    self.output += data
                    # pyte knows no private markers but "?", which kitty's keyboard protocol has.
                    self._stream.feed(re.sub(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]", b"", data))

    @property
    def text(self) -> str:
        """What is on the screen."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(IndexError):
                if result := condition():
                    return result
            assert self.process.poll() is None, f"the app ended with {self.process.poll()}:\n{self.text}"
            time.sleep(0.02)
        raise AssertionError(f"it never came:\n{self.text}")

    def messages(self) -> list[SavedMessage]:
        """The newest conversation, as another app reads it."""
        store = HistoryStore(self.database)
        try:
            latest = store.latest()
            return [] if latest is None else store.messages(latest.id)
        finally:
            store.close()

    def answer_to(self, question: str) -> SavedMessage | None:
        """The first answer of the newest conversation, once that begins with this question."""
        messages = self.messages()
        return messages[1] if len(messages) > 1 and messages[0].content == question else None

    def engine(self) -> int | None:
        """The engine's process."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any("edgechat.engine" in part for part in child.cmdline()):
                        return child.pid
        return None

    def ask(self, question: str) -> None:
        """Type it as soon as there is a prompt; the model may still be loading."""
        self.until(lambda: "Ask anything" in self.text)
        self.type(question + "\r")

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def answer_lines(self) -> list[str]:
        """The lines of the answer that are on the screen: below the question, above the prompt."""
        lines = [
            line.strip(" ▁▂▃▄▅▆▇█▔") if "█" not in line[:8] else "█" for line in self.text.split("\n")[2:]
        ]
        below = lines[max((i for i, line in enumerate(lines) if line == "█"), default=-1) + 1 :]
        return [line for line in itertools.takewhile(lambda line: line[:1] != "╭", below) if line]

    def close(self) -> None:
        """More than once does no harm."""
        if self._closed:
            return
        self._closed = True
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        self._reader.join(5)
        os.close(self.master)
