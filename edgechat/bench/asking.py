"""Asking an engine, with a watch in hand."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from edgechat.engine.process.client import EngineClient, error_from_code
from edgechat.engine.process.messages import Delta, Finished, Generate, Refused
from edgechat.errors import EngineCrashedError
from edgechat.records import LoadSettings


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, and what it took by our own clock."""

    text: str
    finished: Finished
    decode_s: float
    """From the first event with a part of the answer to the end."""
    n_timed: int
    """Tokens that came in that time."""

    @property
    def tokens_per_s(self) -> float:
        """0 where nothing came after the first event."""
        return self.n_timed / self.decode_s if self.decode_s > 0 else 0.0


async def ask(client: EngineClient, request: Generate) -> Timed:
    """Ask, and wait for the whole answer.

    Raises:
        EdgechatError: the engine refused, or died.
    """
    first, seen = 0.0, 0
    text: list[str] = []
    async for event in client.generate(request):
        match event:
            case Delta():
                text.append(event.text)
                if not first:
                    first, seen = time.perf_counter(), event.n_tokens
            case Refused():
                raise error_from_code(event.code, event.error)
            case Finished():
                now = time.perf_counter()
                return Timed(
                    "".join(text),
                    event,
                    now - first if first else 0.0,
                    max(0, len(event.tokens) - seen),
                )
    raise EngineCrashedError("the engine ended an answer without a word")


@asynccontextmanager
async def engine(settings: LoadSettings) -> AsyncIterator[EngineClient]:
    """An engine, for as long as it is needed.

    Raises:
        EdgechatError: the model can't be loaded.
    """
    client = await EngineClient.start(settings)
    try:
        yield client
    finally:
        await client.close()
