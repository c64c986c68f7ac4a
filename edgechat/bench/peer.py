"""The peer that the engine is compared to, from outside its process."""

import asyncio
import contextlib
import os
import sys
from typing import Literal, Self

import msgspec

from edgechat import huge_pages
from edgechat.engine.process.client import error_from_code
from edgechat.errors import EngineCrashedError
from edgechat.records import LoadSettings

PEER = "a bare llama_decode loop"
MAX_LINE = 2**20


class Task(msgspec.Struct, frozen=True):
    """What to measure."""

    do: Literal["decode", "prefill", "costs"]
    prompt: str = ""
    """What is continued (decode), or repeated until it is long enough (prefill)."""
    n_tokens: int = 0
    seconds: float = 0.0
    """How long measuring costs may take."""


class Measured(msgspec.Struct, frozen=True):
    """What came of a task."""

    seconds: float = 0.0
    widths: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()
    """Seconds of a batch of each width."""
    error: str = ""
    code: int = 0
    """The exit code of the error, from edgechat.errors."""


class Peer:
    """A process with llama.cpp and a loop in it. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Use `start`."""
        self._process = process

    @classmethod
    async def start(cls, settings: LoadSettings, *, as_engine: bool = False) -> Self:
        """Start it; it loads the model at its first task.

        Args:
            settings: the model and how to load it.
            as_engine: with its memory in huge pages, as the engine has it, and not as llama.cpp leaves it.

        Raises:
            EdgechatError: the model can't be used.
        """
        environment = huge_pages.environment() if as_engine else dict(os.environ)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "edgechat.bench.peer_host", "--parent", str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment | {"GGML_NO_BACKTRACE": "1"},
            start_new_session=True,  # Ctrl-C in the terminal is ours
            limit=MAX_LINE,
        )  # fmt: skip
        peer = cls(process)
        try:
            await peer._ask(msgspec.json.encode(settings))
        except BaseException:
            await peer.close()
            raise
        return peer

    async def decode(self, prompt: str, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens` of a greedy continuation.

        Raises:
            EdgechatError: it failed or died.
        """
        return (await self._do(Task("decode", prompt, n_tokens))).seconds

    async def prefill(self, text: str, n_tokens: int) -> float:
        """Seconds for a prompt of so many tokens.

        Raises:
            EdgechatError: it failed or died.
        """
        return (await self._do(Task("prefill", text, n_tokens))).seconds

    async def costs(self, seconds: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """V(k): widths of batches, and the seconds that each takes.

        Raises:
            EdgechatError: it failed or died.
        """
        measured = await self._do(Task("costs", seconds=seconds))
        return measured.widths, measured.costs

    async def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _do(self, task: Task) -> Measured:
        return await self._ask(msgspec.json.encode(task))

    async def _ask(self, line: bytes) -> Measured:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise EngineCrashedError(f"{PEER} can't be asked")
        with contextlib.suppress(ConnectionError):
            stdin.write(line + b"\n")
            await stdin.drain()
        answer = await stdout.readline()
        if not answer:
            code = await self._process.wait()
            raise EngineCrashedError(f"the process of {PEER} ended (code {code}); the engine is not at fault")
        measured = msgspec.json.decode(answer, type=Measured)
        if measured.error:
            raise error_from_code(measured.code, measured.error)
        return measured
