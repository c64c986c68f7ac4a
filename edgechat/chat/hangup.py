"""Knowing that the terminal is gone.

The system tells by SIGHUP, but not everyone: not an app that leads no session, as behind `setsid` or in a
container whose client went away. Textual then reads an ended input for ever, at the cost of a core.
"""

import select
import threading
from collections.abc import Callable


def when_hung_up(fd: int, call: Callable[[], object]) -> None:
    """Call once, from a thread of its own, when the other end of a terminal is closed.

    Args:
        fd: the terminal.
        call: it must be safe to call from any thread. Where the system can't tell, it is never called.
    """
    if hasattr(select, "poll"):
        threading.Thread(target=_wait, args=(fd, call), name="hangup", daemon=True).start()


def _wait(fd: int, call: Callable[[], object]) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # hanging up is told in any case, and nothing else
    for _, event in poll.poll():
        if event & (select.POLLHUP | select.POLLERR) and not event & select.POLLNVAL:
            try:
                call()
            except RuntimeError:  # the loop is closed: the app is ending already
                return
