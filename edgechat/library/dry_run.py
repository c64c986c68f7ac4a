"""llama.cpp's own word on what a model takes: its dry run, in a process of its own."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import msgspec

from edgechat.errors import BY_CODE, EdgechatError, ExitCode
from edgechat.library.needs import Needs
from edgechat.records import LoadSettings

MODULE = "edgechat.runtimes.llamacpp.dry_run"
TIMEOUT_S = 60.0


class NoDryRun(Exception):
    """The process gave no answer: an estimate must do."""


class Answer(msgspec.Struct, frozen=True):
    """What one LoadSettings would take, as the process says it."""

    needs: Needs | None = None
    """None where llama.cpp can't make such a context."""
    error: str = ""
    code: int = 0
    n_ctx: int = 0
    n_ctx_train: int = 0
    n_layers: int = 0
    """Those that can be on a GPU, the output layer counted as one."""
    vram: int = 0
    """Free on the GPUs, all together."""
    gpu: str = ""
    """Their names."""
    shared: bool = False
    """Their memory is the main memory."""


class DryRunProcess:
    """A process that has gone through one model, and answers for any settings. A context manager."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Nothing is started yet.

        Args:
            path: a model that was verified: native code reads it.
            timeout_s: how long an answer may take.
        """
        self._path = str(path)
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def ask(self, settings: LoadSettings) -> Answer:
        """What these settings would take.

        Raises:
            NoDryRun: the process died, or is too slow.
            EdgechatError: llama.cpp can't load the model; the class says why.
        """
        try:
            answer = self._ask(msgspec.structs.replace(settings, path=self._path))
        except (OSError, msgspec.DecodeError) as error:
            raise NoDryRun(str(error)) from error
        if answer.error:
            kind = BY_CODE.get(ExitCode(answer.code), EdgechatError) if answer.code else EdgechatError
            raise kind(answer.error)
        return answer

    def _ask(self, settings: LoadSettings) -> Answer:
        if self._process is None:
            self._process = subprocess.Popen(
                # -P: a folder in which a person happens to be is no place to import from
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            )
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise NoDryRun("no pipes")
        watchdog = threading.Timer(self._timeout_s, process.kill)
        watchdog.start()
        try:
            process.stdin.write(msgspec.json.encode(settings) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise NoDryRun("the process ended")
        return msgspec.json.decode(line, type=Answer)
