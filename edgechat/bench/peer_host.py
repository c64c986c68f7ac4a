"""The process of the peer that the engine is compared to: `python -m edgechat.bench.peer_host --parent PID`.

Its standard input brings a model's settings, then tasks, one JSON object a line; each is answered by a line
on its standard output. Its end ends the process.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from edgechat import offline
from edgechat.bench.peer import Measured, Task
from edgechat.engine.process import isolation
from edgechat.engine.process.loading import RUNTIME_VARIABLE
from edgechat.errors import ExitCode, from_exception
from edgechat.records import LoadSettings

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps until the sun is up again. 0123456789"
ENOUGH = 120
"""Plain steps in which V of every width can be measured once."""


class Loop(Protocol):
    """A loaded model and a loop around it, and nothing else."""

    def decode(self, prompt: str, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens` of a greedy continuation."""
        ...

    def prefill(self, text: str, n_tokens: int) -> float:
        """Seconds for a prompt of so many tokens."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class RuntimeLoop:
    """The same on a runtime: of tests, which have no llama.cpp."""

    def __init__(self, runtime: Any) -> None:
        """Take over a runtime."""
        self.runtime = runtime

    def decode(self, prompt: str, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens` of a greedy continuation."""
        from edgechat.runtimes.base import Chunk

        tokens = self.runtime.tokenizer.encode(prompt)
        self.runtime.free(0)
        token = int(self.runtime.decode([Chunk(0, tokens, 0)])[0].argmax())
        started = time.perf_counter()
        for position in range(len(tokens), len(tokens) + n_tokens - 1):
            token = int(self.runtime.decode([Chunk(0, [token], position)])[0].argmax())
        return time.perf_counter() - started

    def prefill(self, text: str, n_tokens: int) -> float:
        """Seconds for a prompt of so many tokens."""
        from edgechat.runtimes.base import Chunk

        tokens = self.runtime.tokenizer.encode(text)
        tokens = (tokens * (n_tokens // len(tokens) + 1))[:n_tokens]
        self.runtime.free(0)
        started = time.perf_counter()
        self.runtime.decode([Chunk(0, tokens, 0)])
        return time.perf_counter() - started

    def close(self) -> None:
        """Free it."""
        self.runtime.close()


class Bench:
    """Does the tasks. What it needs is loaded at the first task that needs it, and one thing at a time."""

    def __init__(self, settings: LoadSettings) -> None:
        """Check the file.

        Raises:
            FileNotFoundError: there is none.
            models.errors.ModelError: it is broken.
        """
        self._settings = settings
        self._scripted = bool(os.environ.get(RUNTIME_VARIABLE))
        self._loop: Loop | None = None
        if not self._scripted:
            from models.verify import verify_gguf

            verify_gguf(Path(settings.path))  # before native code sees it

    def do(self, task: Task) -> Measured:
        """Do one."""
        if task.do == "costs":
            if self._loop is not None:
                self._loop.close()
                self._loop = None
            return self._costs(task.seconds)
        if self._loop is None:
            self._loop = self._make_loop()
        run: Callable[[str, int], float] = self._loop.decode if task.do == "decode" else self._loop.prefill
        return Measured(seconds=run(task.prompt, task.n_tokens))

    def _make_loop(self) -> Loop:
        if self._scripted:
            return RuntimeLoop(self._runtime())
        from edgechat.runtimes.llamacpp.bare import BareLoop

        return BareLoop(self._settings)

    def _costs(self, seconds: float) -> Measured:
        """V(k) of our runtime: what was measured, and nothing that is only likely."""
        from edgechat.engine.speculation.cost import measure
        from edgechat.runtimes.base import Chunk, Wanted

        runtime = self._runtime()
        tokens = runtime.tokenizer.encode(TEXT, special=False)

        def run(width: int) -> float:
            started = time.perf_counter()
            runtime.decode([Chunk(0, tokens[:width], 0, Wanted.ALL)]).argmax(axis=1)
            took = max(time.perf_counter() - started, 1e-7)
            runtime.free(0)
            return took

        try:
            run(1)  # reads the weights
            table = measure(run, seconds=max(seconds, ENOUGH * run(1)))
        finally:
            runtime.close()
        return Measured(widths=table.widths, costs=table.seconds)

    def _runtime(self) -> Any:
        if self._scripted:
            import importlib

            module, _, function = os.environ[RUNTIME_VARIABLE].partition(":")
            return getattr(importlib.import_module(module), function)(self._settings, lambda _: True)
        from edgechat.runtimes.llamacpp import LlamaCppRuntime

        return LlamaCppRuntime.load(self._settings)


def main() -> None:
    """Do tasks until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = isolation.enter(options.parent)
    offline.start("the benchmark's peer")
    bench: Bench | None = None
    with contextlib.suppress(BrokenPipeError):
        for line in channel.requests:
            try:
                if bench is None:
                    bench = Bench(msgspec.json.decode(line, type=LoadSettings))
                    answer = Measured()
                else:
                    answer = bench.do(msgspec.json.decode(line, type=Task))
            except Exception as error:
                ours = from_exception(error)
                code = ExitCode.BUG if ours is None else ours.code
                answer = Measured(
                    error=f"{type(error).__name__}: {error}" if ours is None else str(ours), code=code
                )
            channel.events.write(msgspec.json.encode(answer) + b"\n")
            channel.events.flush()
    os._exit(0)  # threads of llama.cpp may be spinning


def _failure(error: Exception) -> Measured:
    """Why a task could not be done."""
    ours = from_exception(error)
    if ours is None:
        return Measured(error=f"a bug of edgechat's peer: {type(error).__name__}: {error}", code=ExitCode.BUG)
    return Measured(error=str(ours), code=ours.code)


if __name__ == "__main__":
    main()
