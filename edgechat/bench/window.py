"""Milliseconds per token of a text that is longer than the context: does it get slower?"""

from collections.abc import Sequence
from statistics import median

import msgspec
import psutil

from edgechat.bench import texts
from edgechat.bench.asking import engine
from edgechat.bench.plan import Plan
from edgechat.bench.results import WindowResult
from edgechat.bench.streaming import Evictions, stream
from edgechat.engine.process.messages import Generate

SHARE = 20
"""One in so many rounds is looked at, at the beginning and at the end,"""
FEWEST = 3
"""but at least so many, where there are twice as many."""


async def measure(plan: Plan) -> WindowResult:
    """Write on and on, without drafts.

    Raises:
        EdgechatError: the engine failed.
    """
    sizes = plan.sizes
    load = msgspec.structs.replace(plan.load, n_ctx=sizes.window_ctx, n_sequences=1, draft="off")
    async with engine(load) as client:
        process = psutil.Process(client.pid)
        resident: list[int] = []

        def on_eviction(n_tokens: int) -> None:
            resident.append(process.memory_info().rss)
            plan.tell(f"window: {n_tokens} of {sizes.window_tokens} tokens")

        plan.tell("window: filling it")
        request = Generate(
            0, prompt=texts.OPENING, sampling=texts.DRAWN, max_tokens=sizes.window_tokens, ignore_eog=True
        )
        found = await stream(client, request, on_eviction)
        n_ctx = client.info.n_ctx
    first, last = first_and_last(found)
    return WindowResult(
        n_ctx=n_ctx,
        tokens=found.n_tokens,
        evictions=len(found.at),
        first_ms=first * 1000,
        last_ms=last * 1000,
        last_over_first=last / first if first else 0.0,
        rss_growth=growth(resident),
    )


def first_and_last(found: Evictions, share: int = SHARE) -> tuple[float, float]:
    """Seconds per token of the first and of the last rounds from one eviction to the next.

    Whole rounds are compared: within one, the context grows and steps get slower. 0 without two evictions.
    """
    rounds = [
        (later - earlier) / (n - m)
        for (m, earlier), (n, later) in zip(found.at, found.at[1:], strict=False)
        if n > m
    ]
    if not rounds:
        return 0.0, 0.0
    n = min(max(FEWEST, len(rounds) // share), max(1, len(rounds) // 2))
    return median(rounds[:n]), median(rounds[-n:])


def growth(resident: Sequence[int]) -> float:
    """Of resident memory since the window filled."""
    return resident[-1] / resident[0] - 1 if resident else 0.0
