"""A long answer, of which only the evictions are kept."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edgechat.engine.process.client import EngineClient, error_from_code
from edgechat.engine.process.messages import Delta, Evicted, Finished, Generate, Refused
from edgechat.errors import EngineCrashedError


@dataclass(slots=True)
class Evictions:
    """When the window was moved on."""

    at: list[tuple[int, float]] = field(default_factory=list)
    """Tokens of the answer, and seconds of the clock, at each."""
    n_tokens: int = 0
    """Of the whole answer."""


async def stream(
    client: EngineClient, request: Generate, on_eviction: Callable[[int], None] = lambda _: None
) -> Evictions:
    """Ask, and wait for the whole answer.

    Args:
        client: an engine.
        request: whose `max_tokens` may be beyond the context.
        on_eviction: called with the tokens so far.

    Raises:
        EdgechatError: the engine refused, or died.
    """
    found = Evictions()
    async for event in client.generate(request):
        match event:
            case Delta():
                found.n_tokens = event.n_tokens
            case Evicted() if event.n_tokens:
                found.at.append((found.n_tokens, time.perf_counter()))
                on_eviction(found.n_tokens)
            case Refused():
                raise error_from_code(event.code, event.error)
            case Finished():
                found.n_tokens = len(event.tokens)
                return found
    raise EngineCrashedError("the engine ended an answer without a word")
