"""V(k): what verifying k tokens at once takes."""

import msgspec

from edgechat.bench.peer import Peer
from edgechat.bench.plan import Plan
from edgechat.bench.results import Verify


async def measure(plan: Plan) -> Verify:
    """V(1..16), in a process of its own.

    Raises:
        EdgechatError: it failed.
    """
    plan.tell("verify: batches of 1 to 16 tokens")
    load = msgspec.structs.replace(plan.load, n_ctx=512, n_sequences=1, draft="off")
    peer = await Peer.start(load, as_engine=True)
    try:
        widths, costs = await peer.costs(plan.sizes.costs_s)
    finally:
        await peer.close()
    ratios = tuple(cost / costs[0] for cost in costs)
    return Verify(
        plain_ms=costs[0] * 1000,
        widths=widths,
        over_plain=ratios,
        best=tuple(width / ratio for width, ratio in zip(widths, ratios, strict=True)),
    )
