"""How much of llama.cpp's speed each layer leaves: tokens per second of one answer.

    python benchmarks/decode.py [MODEL.gguf] [--tokens 1000] [--runs 5] [--sampled] [--json]

Contenders, all in one go, with the same model, threads and context:

    bare        llama_decode and argmax in a loop, and nothing else
    runtime     our runtime's decode and argmax
    engine      our engine, through its process, plain decoding
    default     the same with speculation from the conversation's words, as `ask` and `chat` start it
    high-level  llama_cpp.Llama.create_completion(stream=True)

The runs alternate, so that a machine that slows down slows all of them, and the median counts. The first
token is not timed: it is prefill's. Nothing ends early: the end of a turn is ignored by all.

All take the likeliest token, so that they write the same text. With --sampled, the engine and llama_cpp.Llama
draw it, at temperature 0.8 with top-k 40, top-p 0.95 and min-p 0.05: how people talk to a model, and what
sampling costs is in it.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

import msgspec

from edgechat import hardware
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Delta, Finished, Generate
from edgechat.library.starter import starter_path
from edgechat.records import LoadSettings, SamplingSettings
from edgechat.runtimes.base import Chunk
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from edgechat.runtimes.llamacpp.bare import BareLoop

PROMPT = "Here is a long story about a lighthouse keeper, told as slowly as the tide comes in.\n\n"
GREEDY = SamplingSettings(temperature=0)
DRAWN = SamplingSettings(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.0, seed=1)


class Contender(Protocol):
    """Something that continues PROMPT."""

    def run(self, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens`."""
        ...

    def close(self) -> None:
        """Give back its memory."""
        ...


class Bare:
    """What llama.cpp can do from Python at best."""

    def __init__(self, settings: LoadSettings, _: SamplingSettings) -> None:
        """Load."""
        self.loop = BareLoop(settings)

    def run(self, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens`."""
        return self.loop.decode(PROMPT, n_tokens)

    def close(self) -> None:
        """Free it."""
        self.loop.close()


class Runtime:
    """Our runtime without an engine."""

    def __init__(self, settings: LoadSettings, _: SamplingSettings) -> None:
        """Load."""
        self.runtime = LlamaCppRuntime.load(settings)
        tokenizer = self.runtime.tokenizer
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        self.prompt = bos + tokenizer.encode(PROMPT)

    def run(self, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens`."""
        runtime = self.runtime
        runtime.free(0)
        token = int(runtime.decode([Chunk(0, self.prompt, 0)])[0].argmax())
        start = len(self.prompt)
        started = time.perf_counter()
        for position in range(start, start + n_tokens - 1):
            token = int(runtime.decode([Chunk(0, [token], position)])[0].argmax())
        return time.perf_counter() - started

    def close(self) -> None:
        """Free it."""
        self.runtime.close()


class Engine:
    """Our engine, from outside its process."""

    def __init__(self, settings: LoadSettings, sampling: SamplingSettings) -> None:
        """Start the process and load."""
        self.sampling = sampling
        self.loop = asyncio.Runner()
        self.client = self.loop.run(EngineClient.start(settings))

    def run(self, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens`."""
        return self.loop.run(self._run(n_tokens))

    async def _run(self, n_tokens: int) -> float:
        request = Generate(0, prompt=PROMPT, sampling=self.sampling, max_tokens=n_tokens, ignore_eog=True)
        first = 0.0
        seen = 0
        async for event in self.client.generate(request):
            match event:
                case Delta() if not first:
                    first, seen = time.perf_counter(), event.n_tokens
                case Finished():
                    # What the first event held is not timed; the rate is scaled to the tokens that were.
                    timed = len(event.tokens) - seen
                    return (time.perf_counter() - first) * (n_tokens - 1) / timed
        raise RuntimeError("the engine refused to answer")

    def close(self) -> None:
        """End the process."""
        self.loop.run(self.client.close())
        self.loop.close()


def default(settings: LoadSettings, sampling: SamplingSettings) -> Engine:
    """The engine as `ask` and `chat` start it."""
    return Engine(msgspec.structs.replace(settings, draft="ngram"), sampling)


class HighLevel:
    """llama-cpp-python's own class, as its documentation shows it."""

    def __init__(self, settings: LoadSettings, sampling: SamplingSettings) -> None:
        """Load."""
        import llama_cpp

        self.sampling = sampling
        self.llama = llama_cpp.Llama(
            settings.path, n_ctx=settings.n_ctx, n_threads=settings.n_threads, n_gpu_layers=-1, verbose=False
        )

    def run(self, n_tokens: int) -> float:
        """Seconds for the tokens 2 to `n_tokens`."""
        self.llama.reset()
        first = 0.0
        with _no_end_of_turn():
            for _ in self.llama.create_completion(
                PROMPT,
                max_tokens=n_tokens,
                temperature=self.sampling.temperature,
                top_k=self.sampling.top_k,
                top_p=self.sampling.top_p,
                min_p=self.sampling.min_p,
                seed=self.sampling.seed,
                repeat_penalty=1.0,
                stream=True,
            ):
                first = first or time.perf_counter()
            return time.perf_counter() - first

    def close(self) -> None:
        """Free it."""
        self.llama.close()


CONTENDERS: dict[str, Callable[[LoadSettings, SamplingSettings], Contender]] = {
    "bare": Bare,
    "runtime": Runtime,
    "engine": Engine,
    "default": default,
    "high-level": HighLevel,
}


@contextmanager
def _no_end_of_turn() -> Iterator[None]:
    """Keep llama_cpp.Llama, which has no option for it, from ending at the end of the turn."""
    import llama_cpp.llama_cpp

    with mock.patch.object(llama_cpp.llama_cpp, "llama_vocab_is_eog", return_value=False):
        yield


def measure(
    names: list[str], settings: LoadSettings, sampling: SamplingSettings, n_tokens: int, runs: int
) -> dict[str, list[float]]:
    """Tokens per second of each contender in each run."""
    contenders = {name: CONTENDERS[name](settings, sampling) for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    try:
        for contender in contenders.values():
            contender.run(min(n_tokens, 16))  # fills caches and starts threads
        for turn in range(runs):
            order = names if turn % 2 == 0 else names[::-1]
            for name in order:
                rates[name].append((n_tokens - 1) / contenders[name].run(n_tokens))
                sys.stderr.write(f"\rrun {turn + 1} of {runs}: {name:12}")
        sys.stderr.write("\r" + " " * 40 + "\r")
    finally:
        for contender in contenders.values():
            contender.close()
    return rates


def report(rates: dict[str, list[float]], settings: LoadSettings, n_tokens: int) -> dict[str, Any]:
    """Medians, and of each contender's ratios to its peers in the same runs."""
    rows = {}
    for name, values in rates.items():
        rows[name] = {
            "tokens_per_s": statistics.median(values),
            "slowest": min(values),
            "fastest": max(values),
            "over_bare": ratio(values, rates.get("bare")),
            "over_high_level": ratio(values, rates.get("high-level")),
        }
    return {
        "model": settings.path.rpartition("/")[2],
        "tokens": n_tokens,
        "runs": len(next(iter(rates.values()))),
        "threads": settings.n_threads,
        "contenders": rows,
    }


def ratio(values: list[float], peers: list[float] | None) -> float | None:
    """The median over the runs; None without the peer."""
    if not peers:
        return None
    return statistics.median(mine / peer for mine, peer in zip(values, peers, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Decode speed of each layer over llama.cpp.")
    parser.add_argument("model", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of each answer")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender, at least 5 for a figure")
    parser.add_argument("--threads", type=int, default=hardware.physical_cores())
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--sampled", action="store_true", help="draw the tokens, at temperature 0.8")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()

    path = options.model or str(starter_path())
    settings = LoadSettings(path, n_ctx=options.tokens + 256, n_sequences=1, n_threads=options.threads)
    sampling = DRAWN if options.sampled else GREEDY
    rates = measure(options.only, settings, sampling, options.tokens, options.runs)
    result = report(rates, settings, options.tokens)
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    sys.stdout.write(
        f"{result['model']}: {result['tokens']} tokens, {result['threads']} threads, "
        f"median of {result['runs']} alternating runs\n"
    )
    heads = ("tokens/s", "slowest", "fastest", "of bare", "of high-level")
    sys.stdout.write(" " * 12 + "".join(f"{head:>14}" for head in heads) + "\n")
    for name, row in result["contenders"].items():
        speeds = [f"{row[key]:.1f}" for key in ("tokens_per_s", "slowest", "fastest")]
        ratios = [f"{row[key]:.3f}" if row[key] else "-" for key in ("over_bare", "over_high_level")]
        sys.stdout.write(f"{name:12}" + "".join(f"{cell:>14}" for cell in speeds + ratios) + "\n")


if __name__ == "__main__":
    main()
