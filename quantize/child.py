"""Work of llama.cpp's in a process of its own: `python -m quantize.native`, `-m quantize.imatrix_native`.

A file that makes llama.cpp abort ends that process and not ours, and Ctrl-C can stop it at once. The job
goes in as one line of JSON on stdin; what it tells comes back as lines of JSON on stdout. The process ends
when its stdin does, so it can't outlive us, and nothing of what native code prints reaches the terminal.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quantize.errors import NativeFailure

Message = dict[str, Any]
Tell = Callable[[Message], None]


def run(module: str, job: Mapping[str, Any], hear: Tell, *, doing: str) -> None:
    """Have a module do a job, and hear all that it tells but its end and its last words.

    Args:
        module: whose `main` calls `serve`.
        job: what `serve` hands on.
        hear: is told each message; what it raises ends the process.
        doing: for the error: "quantize tiny.gguf".

    Raises:
        OSError: as it was raised in the process: the disk is full, for one.
        NativeFailure: llama.cpp refused, or its process died; with its last words.
    """
    words: list[str] = []
    with _process(module, job) as process:
        assert process.stdout is not None
        done = False
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "words" in message:
                words.append(message["words"])
            elif "system" in message:
                raise OSError(*message["system"])
            elif "done" in message:
                done = message["done"] == 0
            else:
                hear(message)
        code = process.wait()
    if not done or code != 0:
        how = f"ended with {code}" if code >= 0 else f"died of signal {-code}"
        said = words[-1] if words else "it said nothing"
        raise NativeFailure(f"llama.cpp could not {doing}: {said} (its process {how})")


@contextmanager
def _process(module: str, job: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """The process, killed on the way out if it still runs."""
    process = subprocess.Popen(
        # -P: no module out of the folder that we happen to be called in.
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        yield process
    except BrokenPipeError:
        raise NativeFailure("the process that runs llama.cpp could not be started") from None
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        # Closing flushes, and there is nobody to flush to.
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue


# --- inside the process


def serve(work: Callable[[Message, Tell], int]) -> int:
    """Do the job that stdin brings.

    Args:
        work: does it, told the job and how to report; returns llama.cpp's code: 0 where it succeeded.
    """
    # Ctrl-C reaches the whole group; what to do about it is our parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ours = os.dup(1)
    os.dup2(2, 1)  # whatever native code prints stays out of the protocol

    def report(message: Message) -> None:
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(ours, data) :]

    try:
        code = work(job, report)
    except OSError as error:
        if error.errno is None:  # a library's own, of what it could not read
            report({"words": " ".join(str(error).split())[:500]})
            report({"done": 1})
            return 1
        named = [] if error.filename is None else [os.fsdecode(error.filename)]
        report({"system": [error.errno, error.strerror, *named]})
        code = 1
    report({"done": code})
    return code


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)
