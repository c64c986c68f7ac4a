"""The terminal comes back whatever ends the app: no program can answer a kill -9 or the out-of-memory killer.

A shell of a few hundred kilobytes waits beside the app for a word through a pipe. Where the pipe ends without
it, the app is dead: the shell leaves the alternate screen, shows the cursor, ends the reports of mouse, focus
and pastes, and sets the line's modes back, unless somebody did so already (a shell that reads commands does).
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SHELL = "/bin/sh"
# What Textual's driver for Linux and macOS ends with: reports of size, pastes, mouse and focus, kitty's
# way of telling keys, the alternate screen, the cursor.
_SEQUENCES = (
    "[?2048l", "[?2004l", "[?1000l", "[?1003l", "[?1015l", "[?1006l", "[?1016l", "[?1004l", "[<u", "[?1049l",
    "[?25h",
)  # fmt: skip
# Standard output is the terminal, $1 the modes. The sequences go first, or a shell's prompt would come before
# them and be gone with the alternate screen. "-isig": Ctrl-C is no signal, which only the app wants so.
_SCRIPT = f"""
read -r word && exit
printf '{"".join(chr(92) + "033" + sequence for sequence in _SEQUENCES)}'
exec 3<&1
case $(stty -a <&3) in *-isig*) stty "$1" <&3 ;; esac
"""


@contextmanager
def guarded(fd: int) -> Iterator[None]:
    """Guard a terminal while the context lasts; where that can't be, or it is none, do nothing.

    Args:
        fd: the terminal, in the modes to go back to.
    """
    guardian = _start(fd)
    try:
        yield
    finally:
        if guardian is not None and guardian.stdin is not None:
            with suppress(OSError):  # it was killed
                guardian.stdin.write(b"left\n")
                guardian.stdin.close()
            guardian.wait()


def _start(fd: int) -> subprocess.Popen[bytes] | None:
    try:
        terminal = os.open(os.ttyname(fd), os.O_RDWR | os.O_NOCTTY)
    except (OSError, AttributeError):  # not a terminal, or Windows
        return None
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        modes = subprocess.check_output(
            ["stty", "-g"], stdin=terminal, stderr=subprocess.DEVNULL, env=environment, text=True
        )
        return subprocess.Popen(
            [SHELL, "-c", _SCRIPT, SHELL, modes.strip()],
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,  # neither Ctrl-C nor the terminal's end reaches it
        )
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        os.close(terminal)
