"""Plain decoding and prefill, in turns with llama.cpp's own loop."""

from statistics import median

import msgspec

from edgechat.bench import texts
from edgechat.bench.asking import ask, engine
from edgechat.bench.peer import PEER, Peer
from edgechat.bench.plan import Plan, median_ratio
from edgechat.bench.results import Part, Speed
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Generate
from edgechat.records import LoadSettings


def settings(plan: Plan, part: Part) -> LoadSettings:
    """Without drafts, and with a context that is large enough."""
    if part is Part.DECODE:
        n_ctx = texts.room(texts.OPENING, plan.sizes.decode_tokens)
    else:
        n_ctx = texts.room(texts.passage(plan.sizes.prefill_tokens), 16)
    return msgspec.structs.replace(plan.load, n_ctx=n_ctx, n_sequences=1, draft="off")


async def measure(plan: Plan, part: Part) -> Speed:
    """Tokens per second of decoding or of prefill.

    Raises:
        EdgechatError: the engine or the peer failed.
    """
    load = settings(plan, part)
    async with engine(load) as client:
        layers = client.info.n_gpu_layers  # as many as fit: llama.cpp itself takes all or fails
        peer = await Peer.start(msgspec.structs.replace(load, n_gpu_layers=layers))
        try:
            if part is Part.DECODE:
                return await _decode(plan, client, peer)
            return await _prefill(plan, client, peer)
        finally:
            await peer.close()


async def _decode(plan: Plan, client: EngineClient, peer: Peer) -> Speed:
    n_tokens, runs = plan.sizes.decode_tokens, plan.sizes.runs
    await _decode_once(client, 4)  # fills caches and starts threads
    await peer.decode(texts.OPENING, 4)
    mine: list[float] = []
    theirs: list[float] = []
    for run in range(runs):
        plan.tell(f"decode, run {run + 1} of {runs}")
        if run % 2:
            theirs.append((n_tokens - 1) / await peer.decode(texts.OPENING, n_tokens))
        mine.append(await _decode_once(client, n_tokens))
        if not run % 2:
            theirs.append((n_tokens - 1) / await peer.decode(texts.OPENING, n_tokens))
    rate = median(mine)
    return Speed(
        tokens=n_tokens,
        runs=runs,
        tokens_per_s=rate,
        peer=PEER,
        peer_tokens_per_s=median(theirs),
        over_peer=median_ratio(mine, theirs),
        gb_per_s=None if _has_experts(client) else rate * client.info.size_bytes / 1e9,
    )


async def _decode_once(client: EngineClient, n_tokens: int) -> float:
    request = Generate(0, prompt=texts.OPENING, sampling=texts.GREEDY, max_tokens=n_tokens, ignore_eog=True)
    return (await ask(client, request)).tokens_per_s


def _has_experts(client: EngineClient) -> bool:
    """Whether a token needs a part of the weights only."""
    from pathlib import Path

    from models.errors import ModelError
    from models.gguf import read_header

    try:
        header = read_header(Path(client.info.path))
    except (ModelError, OSError):  # not a file of ours to read: a runtime of tests
        return False
    experts = header.metadata.get(f"{client.info.architecture}.expert_count", 0)
    return isinstance(experts, int) and experts > 0


async def _prefill(plan: Plan, client: EngineClient, peer: Peer) -> Speed:
    runs = plan.sizes.runs
    n_tokens = await _prompt_tokens(client, plan.sizes.prefill_tokens)
    await peer.prefill(texts.SENTENCE, n_tokens)
    mine: list[float] = []
    theirs: list[float] = []
    for run in range(runs):
        plan.tell(f"prefill, run {run + 1} of {runs}")
        if run % 2:
            theirs.append(n_tokens / await peer.prefill(texts.SENTENCE, n_tokens))
        mine.append(await _prefill_once(client, plan.sizes.prefill_tokens, run + 1))
        if not run % 2:
            theirs.append(n_tokens / await peer.prefill(texts.SENTENCE, n_tokens))
    return Speed(
        tokens=n_tokens,
        runs=runs,
        tokens_per_s=median(mine),
        peer=PEER,
        peer_tokens_per_s=median(theirs),
        over_peer=median_ratio(mine, theirs),
    )


async def _prompt_tokens(client: EngineClient, n_tokens: int) -> int:
    """Tokens that the prompt really has; the engine is warm after it."""
    timings = (await ask(client, _prompt(n_tokens, 0))).finished.timings
    return timings.prefill_tokens + timings.cached_tokens


async def _prefill_once(client: EngineClient, n_tokens: int, run: int) -> float:
    timings = (await ask(client, _prompt(n_tokens, run))).finished.timings
    return timings.prefill_tokens / timings.prefill_s if timings.prefill_s > 0 else 0.0


def _prompt(n_tokens: int, run: int) -> Generate:
    """Each run's begins with another letter: nothing of it can be cached."""
    text = texts.passage(n_tokens)
    return Generate(
        0, prompt=f"{chr(65 + run)}. {text}", sampling=texts.GREEDY, max_tokens=1, ignore_eog=True
    )
