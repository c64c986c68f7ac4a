"""What the context's memory takes, and the engine in all."""

from pathlib import Path

import msgspec
import psutil

from edgechat.bench import texts
from edgechat.bench.asking import ask, engine
from edgechat.bench.plan import Plan
from edgechat.bench.results import KVMemory, MemoryResult
from edgechat.engine.process.messages import Generate
from edgechat.errors import EdgechatError
from edgechat.library.estimate import SHARE, estimate_file
from edgechat.records import ModelInfo
from models.errors import ModelError

PROMPT_TOKENS = 64


async def measure(plan: Plan) -> MemoryResult:
    """Load as the person's settings have it, read a prompt, and look at the process.

    Raises:
        EdgechatError: the engine failed.
    """
    plan.tell("memory")
    load = msgspec.structs.replace(plan.load, draft="off", n_sequences=1)
    async with engine(load) as client:
        prompt = texts.passage(PROMPT_TOKENS)
        await ask(client, Generate(0, prompt=prompt, sampling=texts.GREEDY, max_tokens=2, ignore_eog=True))
        resident = psutil.Process(client.pid).memory_info().rss
        info = client.info
    load = msgspec.structs.replace(load, n_ctx=info.n_ctx, use_mmap=info.mapped)
    try:
        planned = estimate_file(Path(load.path), load).peak
    except (ModelError, EdgechatError, OSError):  # a runtime of tests, whose model is no file
        planned = 0
    return MemoryResult(
        n_ctx=info.n_ctx,
        kv=kv_types(info, load.kv_type),
        measured_bytes=resident,
        planned_bytes=planned,
        measured_over_planned=resident / planned if planned else 0.0,
    )


def kv_types(info: ModelInfo, used: str) -> tuple[KVMemory, ...]:
    """The cache as it is, and what it would take in the other types."""
    whole = info.kv_bytes_per_token / next(share for name, share in SHARE.items() if name == used)
    ordered = sorted(SHARE, key=lambda name: (name != used, -SHARE[name]))
    return tuple(
        KVMemory(
            kv_type=name,
            bytes_per_token=round(whole * SHARE[name]),
            total_bytes=round(whole * SHARE[name] * info.n_ctx),
            of_f16=SHARE[name],
        )
        for name in ordered
    )
