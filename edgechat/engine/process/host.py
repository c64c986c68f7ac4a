"""The engine's own process: `python -m edgechat.engine.process.host --parent PID`.

Its standard input brings requests, its standard output takes events, its standard error is its log.

A thread decodes requests onto a queue; the main thread alone touches the engine. It steps while there is
work, and waits for requests otherwise. The end of standard input ends the process at once.
"""

import argparse
import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from edgechat import offline
from edgechat.engine.process import isolation, loading
from edgechat.engine.process.frames import BlockingReader, BlockingWriter, FrameError
from edgechat.engine.process.messages import (
    Cancel,
    Forget,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Message,
    Request,
    Score,
    Shutdown,
)
from edgechat.errors import EdgechatError, ExitCode, from_exception

if TYPE_CHECKING:
    from edgechat.engine.process.work import Work

PROGRESS_S = 0.05
"""Shortest time between two Loading events."""

SAVE_AFTER_S = 1.0
"""So long nothing was asked before a conversation's state is saved: the next question mustn't wait for it."""
SAVE_AT_END_S = 1.0
"""Longest time that saving may delay the end."""

_Requests = queue.SimpleQueue[Request]


def main() -> None:
    """Serve one client, until it leaves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = isolation.enter(options.parent)
    offline.start("the engine")  # it has no business in any network, asked or not

    requests: _Requests = queue.SimpleQueue()
    reader = BlockingReader(channel.requests)
    threading.Thread(target=_read, args=(reader, requests), name="requests", daemon=True).start()
    writer = BlockingWriter(channel.events)
    with contextlib.suppress(BrokenPipeError):  # the client is gone
        _serve(requests, writer)
    os._exit(0)  # native threads may be spinning: Python's own end would wait for them


def _read(reader: BlockingReader, requests: _Requests) -> None:
    """Put requests on the queue; leave when there can be no more."""
    try:
        while (request := reader.read()) is not None:
            requests.put(request)
    except FrameError as error:
        os.write(2, f"the client sent {error}\n".encode())
        os._exit(ExitCode.BUG)
    os._exit(0)


def _serve(requests: _Requests, writer: BlockingWriter) -> None:
    loading.import_runtime()  # while the client is still on its way
    first = requests.get()
    if not isinstance(first, Load):
        return
    try:
        work, load_s, notes = loading.load(first.settings, writer.write, _progress(writer))
    except Exception as error:
        writer.write(_failure(error))
        return
    writer.write(Loaded(info=work.info, load_s=load_s, notes=notes))
    while True:
        isolation.bound_log()
        for request in _waiting(requests, work):
            match request:
                case Generate() | Score():
                    work.submit(request)
                case Cancel():
                    work.cancel(request.id)
                case Forget():
                    work.forget(request.conversation)
                case Shutdown() | Load():
                    work.save_all(SAVE_AT_END_S)
                    return
        work.step()


def _waiting(requests: _Requests, work: "Work") -> list[Request]:
    """The requests that have come. Where there is no work they are waited for, and states saved meanwhile."""
    waiting: list[Request] = []
    while not work.busy and not waiting:
        try:
            waiting.append(requests.get(timeout=SAVE_AFTER_S if work.unsaved else None))
        except queue.Empty:
            work.save_one()
    while not requests.empty():
        waiting.append(requests.get())
    return waiting


def _progress(writer: BlockingWriter) -> loading.Progress:
    """Tells the client how far loading has come, not too often."""
    last = 0.0

    def tell(progress: float) -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_S or progress >= 1:
            last = now
            writer.write(Loading(progress))
        return True

    return tell


def _failure(error: Exception) -> Message:
    """Why the model could not be loaded; the trace of what can only be a bug is in the log."""
    ours = from_exception(error)
    if ours is None:
        import traceback

        os.write(2, "".join(traceback.format_exception(error)).encode())
        ours = EdgechatError(f"a bug of edgechat while it loaded the model: {type(error).__name__}: {error}")
    return LoadFailed(code=ours.code, error=str(ours))


if __name__ == "__main__":
    main()
