"""A text that is many times longer than the context: speed, memory, and how well the model foretells it.

    python benchmarks/window.py [MODEL.gguf] [--ctx 1024] [--tokens 100000] [--text FILE] [--quick] [--json]

First the engine writes so many tokens, through its process, and the end of a turn is ignored. At the end a
second one begins, and as soon as its window has filled for the first time both write in turns, one round from
one eviction to the next (the context grows and shrinks in between) while the other is stopped: so a machine
that became slower or faster in half an hour changes nothing. Compared are the milliseconds per token of the
old and the new one, and the resident memory of the old one then and when its own window had just filled.

Then a known text streams through the runtime, an eighth of the window at a time, and the perplexity of all
that came after the window first filled is taken in four ways:

    stream      the first four tokens stay, the oldest of the others go, and keys move to new positions
    recomputed  the same tokens, computed anew for each eighth
    recent      the most recent tokens alone, computed anew for each eighth
    no sinks    the oldest tokens go, the first of all among them

On SmolLM2, 100,000 tokens take about half an hour on two cores.
"""

import argparse
import asyncio
import json
import math
import sys
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from edgechat import hardware
from edgechat.bench import texts, window
from edgechat.bench.asking import engine
from edgechat.bench.plan import median_ratio
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Delta, Evicted, Generate, Refused
from edgechat.library.starter import starter_path
from edgechat.records import LoadSettings
from edgechat.runtimes.base import Chunk, Logits, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime

SINKS = 4
STEPS = 8
BATCH = 512
TURNS = 9
"""Rounds of the old engine and of the new one."""
Way = Callable[[LlamaCppRuntime, Sequence[int], int], None]


def tell(text: str) -> None:
    """What is being done, on one line of stderr."""
    sys.stderr.write(f"\r{text:60}")
    sys.stderr.flush()


def prefill(runtime: LlamaCppRuntime, tokens: Sequence[int]) -> None:
    """Start sequence 0 anew with `tokens`."""
    runtime.free(0)
    for at in range(0, len(tokens), BATCH):
        runtime.decode([Chunk(0, tokens[at : at + BATCH], at, Wanted.NONE)])


def losses(logits: Logits, following: Sequence[int]) -> float:
    """Sum of the negative log-likelihoods. logits [n, n_vocab], following [n]."""
    total = 0.0
    for row, token in zip(logits, following, strict=True):
        top = float(row.max())
        total += top + math.log(float(np.exp(row - top).sum(dtype=np.float64))) - float(row[token])
    return total


def stream(runtime: LlamaCppRuntime, tokens: Sequence[int], at: int) -> None:
    """Evict behind the first tokens."""
    runtime.evict(0, SINKS, SINKS + runtime.n_ctx // STEPS)


def recomputed(runtime: LlamaCppRuntime, tokens: Sequence[int], at: int) -> None:
    """The tokens that `stream` keeps, from scratch."""
    kept = runtime.n_ctx - runtime.n_ctx // STEPS - SINKS
    prefill(runtime, [*tokens[:SINKS], *tokens[at - kept : at]])


def recent(runtime: LlamaCppRuntime, tokens: Sequence[int], at: int) -> None:
    """As many of the most recent tokens, from scratch."""
    prefill(runtime, tokens[at - (runtime.n_ctx - runtime.n_ctx // STEPS) : at])


def no_sinks(runtime: LlamaCppRuntime, tokens: Sequence[int], at: int) -> None:
    """Evict the very first tokens too."""
    runtime.evict(0, 0, runtime.n_ctx // STEPS)


WAYS: dict[str, Way] = {"stream": stream, "recomputed": recomputed, "recent": recent, "no sinks": no_sinks}


def perplexity(runtime: LlamaCppRuntime, tokens: Sequence[int], name: str) -> float:
    """Of all that comes after the window first filled."""
    step = runtime.n_ctx // STEPS
    prefill(runtime, tokens[: runtime.n_ctx])
    total, n = 0.0, 0
    for at in range(runtime.n_ctx, len(tokens) - step, step):
        tell(f"perplexity, {name}: {at} of {len(tokens)} tokens")
        WAYS[name](runtime, tokens, at)
        logits = runtime.decode([Chunk(0, tokens[at : at + step], runtime.length(0), Wanted.ALL)])
        total += losses(logits, tokens[at + 1 : at + step + 1])
        n += step
    return math.exp(total / n)


def perplexities(load: LoadSettings, text: str, most: int, names: Sequence[str]) -> dict[str, Any]:
    """Each way's, and their ratios to what is computed anew."""
    runtime = LlamaCppRuntime.load(load)
    try:
        if not runtime.can.shift:
            raise SystemExit(f"{runtime.info.name} can't move keys: its windows are always computed anew")
        tokenizer = runtime.tokenizer
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        tokens = [*bos, *tokenizer.encode(text, special=False)]
        wanted = min(most, len(tokens)) if most else len(tokens)
        if wanted < runtime.n_ctx + 2 * runtime.n_ctx // STEPS:
            raise SystemExit(f"a text of {wanted} tokens is too short for a window of {runtime.n_ctx}")
        found = {name: perplexity(runtime, tokens[:wanted], name) for name in names}
        n_ctx = runtime.n_ctx
    finally:
        runtime.close()
    return {
        "n_ctx": n_ctx,
        "text_tokens": wanted,
        "sinks": SINKS,
        "perplexity": found,
        "over_recomputed": {name: value / found["recomputed"] for name, value in found.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="A text longer than the context: speed, memory, perplexity.")
    parser.add_argument("model", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--ctx", type=int, default=1024, help="tokens of the window")
    parser.add_argument("--tokens", type=int, default=100_000, help="to be written; 0: none")
    parser.add_argument("--text", type=Path, help="a text to be foretold; edgechat's own if none is named")
    parser.add_argument("--text-tokens", type=int, default=0, help="of it, at most; 0: all, -1: skip this")
    parser.add_argument("--kv-type", choices=["f16", "q8_0", "q4_0"], default="f16")
    parser.add_argument("--threads", type=int, default=hardware.physical_cores(), help="0: adaptive")
    parser.add_argument("--quick", action="store_true", help="a window of 256, some hundred tokens")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    if options.quick:
        options.ctx, options.tokens = min(options.ctx, 256), min(options.tokens, 600)
        options.text_tokens = options.text_tokens or 640

    path = options.model or str(starter_path())
    load = LoadSettings(
        path,
        n_ctx=options.ctx,
        n_sequences=1,
        n_threads=options.threads,
        kv_type=options.kv_type,
        draft="off",
    )
    result: dict[str, Any] = {
        "model": Path(path).name,
        "threads": options.threads,
        "kv_type": options.kv_type,
    }
    if options.tokens:
        result["speed"] = asyncio.run(speed(load, options.tokens))
    if options.text_tokens >= 0:
        own = files("quantize").joinpath("data", "eval.txt")
        text = (options.text or own).read_text(encoding="utf-8")
        result["foretelling"] = perplexities(load, text, options.text_tokens, list(WAYS))
    sys.stderr.write("\r" + " " * 60 + "\r")
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        show(result)


class Writer:
    """An engine that writes without end, and can be held where its window has just been moved on."""

    def __init__(self, client: EngineClient, name: str, n_tokens: int) -> None:
        """Held for the first time when it has written so many tokens."""
        self._client = client
        self._name = name
        self._n_free = n_tokens
        self._process = psutil.Process(client.pid)
        self._evictions: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self.n_tokens = self.n_evictions = 0
        self.resident: list[int] = []

    async def write(self) -> None:
        """Until it is cancelled."""
        request = Generate(0, prompt=texts.OPENING, sampling=texts.DRAWN, max_tokens=10**9, ignore_eog=True)
        async for event in self._client.generate(request):
            match event:
                case Delta():
                    self.n_tokens = event.n_tokens
                case Evicted() if event.n_tokens:
                    now = time.perf_counter()
                    self.n_evictions += 1
                    self.resident.append(self._process.memory_info().rss)
                    if self.n_tokens >= self._n_free:
                        self._process.suspend()
                        self._evictions.put_nowait((self.n_tokens, now))
                    else:
                        tell(f"{self._name}: {self.n_tokens} of {self._n_free} tokens")
                case Refused():
                    raise SystemExit(event.error)

    async def held(self) -> tuple[int, float]:
        """Wait until it is: at how many tokens, and when."""
        return await self._evictions.get()

    async def round(self) -> float:
        """Seconds per token to the next eviction."""
        n_before, begun = self.n_tokens, time.perf_counter()
        self._process.resume()
        n, at = await self.held()
        return (at - begun) / (n - n_before)

    def go(self) -> None:
        """Not held any more."""
        self._n_free = 10**9
        self._process.resume()


@asynccontextmanager
async def writer(load: LoadSettings, name: str, n_tokens: int) -> AsyncIterator[Writer]:
    """One that is held where it has written so many tokens."""
    async with engine(load) as client:
        found = Writer(client, name, n_tokens)
        writing = asyncio.create_task(found.write())
        try:
            held = asyncio.create_task(found.held())
            done, _ = await asyncio.wait({writing, held}, return_when=FIRST_COMPLETED)
            if writing in done:
                raise SystemExit(f"the engine ended: {writing.exception()}")
            yield found
        finally:
            found.go()
            writing.cancel()


async def speed(load: LoadSettings, n_tokens: int) -> dict[str, Any]:
    """Milliseconds per token of an engine at the end, and of one whose window has just filled; memory."""
    async with writer(load, "writing", n_tokens) as old, writer(load, "filling another window", 0) as new:
        was, now = [], []
        for turn in range(TURNS):
            tell(f"in turns: {turn + 1} of {TURNS}")
            was.append(await new.round())
            now.append(await old.round())
        return {
            "tokens": old.n_tokens,
            "n_ctx": load.n_ctx,
            "evictions": old.n_evictions,
            "turns": TURNS,
            "first_ms": 1000 * median(was),
            "last_ms": 1000 * median(now),
            "last_over_first": median_ratio(now, was),
            "rss_growth": window.growth(old.resident),
        }


def show(result: dict[str, Any]) -> None:
    """The tables."""
    write = sys.stdout.write
    write(f"{result['model']}, {result['threads']} threads, {result['kv_type']}\n")
    if speed_ := result.get("speed"):
        write(f"{speed_['tokens']} tokens through a window of {speed_['n_ctx']}, ")
        write(f"{speed_['evictions']} evictions\n")
        write(f"  ms per token, window just full {speed_['first_ms']:10.3f}\n")
        write(f"  ms per token, at the end       {speed_['last_ms']:10.3f}\n")
        write(f"  end / just full                {speed_['last_over_first']:10.3f}\n")
        write(f"  resident memory since          {speed_['rss_growth']:+10.2%}\n")
    if told := result.get("foretelling"):
        write(f"{told['text_tokens']} tokens of text, window of {told['n_ctx']}, {told['sinks']} sinks\n")
        write(f"  {'':12}{'perplexity':>12}{'/ recomputed':>14}\n")
        for name, value in told["perplexity"].items():
            write(f"  {name:12}{value:12.3f}{told['over_recomputed'][name]:14.3f}\n")


if __name__ == "__main__":
    main()
