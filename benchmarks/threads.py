"""Decode speed while other programs compute: edgechat's adaptive threads against fixed numbers of them.

    python benchmarks/threads.py [MODEL.gguf] [--loops 0 2 4] [--runs 5] [--seconds 10] [--quick] [--json]

Beside the engine so many busy loops run, each a process of its own that ends by itself. All contenders are
loaded; they answer in turns, each for so many seconds, and the time in which edgechat finds its number of
threads is part of its runs. Compared are tokens per second in neighbouring runs: adaptive over fixed = cores,
which is what a program that looks once at the machine takes, and adaptive over the best fixed number, which
nobody knows beforehand. Meaningful only where nothing else runs.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from edgechat import hardware
from edgechat.bench import texts
from edgechat.bench.asking import engine
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Delta, Finished, Generate, Refused
from edgechat.library.starter import starter_path
from edgechat.records import LoadSettings

ADAPTIVE = "adaptive"
MOST_TOKENS = 1024
"""Of an answer: fast contenders shall not pay for a longer context."""
LOOP = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


@contextmanager
def busy_loops(count: int, seconds: float) -> Iterator[None]:
    """Processes that compute, for no longer than so many seconds."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", LOOP, str(seconds)]) for _ in range(count)]
    try:
        yield
        if any(loop.poll() is not None for loop in loops):
            raise RuntimeError("the busy loops ended before the measurement")
    finally:
        for loop in loops:
            loop.terminate()
            loop.wait()


async def rate(client: EngineClient, seconds: float) -> float:
    """Tokens per second from an answer's first token on, for so many seconds.

    Beside busy loops a token of fixed threads can take seconds. So the wait for the first one ends, too,
    after twice as long, and a contender that wrote nothing is said to have written one token.
    """
    request = Generate(
        0, prompt=texts.OPENING, sampling=texts.GREEDY, max_tokens=MOST_TOKENS, ignore_eog=True
    )
    answer = client.generate(request)
    loop = asyncio.get_running_loop()
    timer = loop.call_later(2 * seconds, answer.cancel)
    began = loop.time()
    first_n, n_tokens = 0, 0
    async for event in answer:
        match event:
            case Delta() if not answer.cancelled:
                n_tokens = event.n_tokens
                if not first_n:
                    began, first_n = loop.time(), n_tokens
                    timer.cancel()
                    timer = loop.call_later(seconds, answer.cancel)
            case Refused():
                raise RuntimeError(event.error)
            case Finished():
                break
    timer.cancel()
    at_most = seconds if first_n else 2 * seconds  # the step that is being cancelled comes on top
    return max(1, n_tokens - first_n) / min(at_most, loop.time() - began)


async def measure(load: LoadSettings, options: argparse.Namespace) -> dict[int, dict[str, list[float]]]:
    """Tokens per second: of each number of loops, each contender, each run."""
    contenders = {ADAPTIVE: 0} | {f"fixed {n}": n for n in options.fixed}
    found: dict[int, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(engine(msgspec.structs.replace(load, n_threads=n)))
            for name, n in contenders.items()
        }
        for client in clients.values():
            await rate(client, 0.2)
        for n_loops in options.loops:
            rates: dict[str, list[float]] = {name: [] for name in clients}
            found[n_loops] = rates
            # Waiting for a first token and for the step that is cancelled comes on top of the seconds.
            at_most = 3 * options.runs * len(clients) * (3 * options.seconds + 20)
            with busy_loops(n_loops, at_most):
                for run in range(options.runs):
                    names = list(clients) if run % 2 == 0 else list(clients)[::-1]
                    for name in names:
                        sys.stderr.write(f"\r{n_loops} loops, run {run + 1} of {options.runs}: {name:12}")
                        sys.stderr.flush()
                        rates[name].append(await rate(clients[name], options.seconds))
    sys.stderr.write("\r" + " " * 50 + "\r")
    return found


def report(found: dict[int, dict[str, list[float]]], cores: int) -> list[dict[str, Any]]:
    """Medians, and the medians of the ratios of neighbouring runs."""
    rows = []
    for n_loops, rates in found.items():
        medians = {name: statistics.median(values) for name, values in rates.items()}
        fixed = {name: value for name, value in medians.items() if name != ADAPTIVE}
        best = max(fixed, key=fixed.__getitem__)
        rows.append(
            {
                "loops": n_loops,
                "tokens_per_s": medians,
                "best_fixed": best,
                "adaptive_over_cores": _ratio(rates[ADAPTIVE], rates.get(f"fixed {cores}", [])),
                "adaptive_over_best_fixed": _ratio(rates[ADAPTIVE], rates[best]),
            }
        )
    return rows


def _ratio(mine: list[float], theirs: list[float]) -> float | None:
    ratios = [a / b for a, b in zip(mine, theirs, strict=False) if b > 0]
    return statistics.median(ratios) if ratios else None


def main() -> None:
    """Measure and print."""
    cores = hardware.physical_cores()
    parser = argparse.ArgumentParser(description="Adaptive against fixed threads on a busy machine.")
    parser.add_argument("model", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--loops", nargs="+", type=int, default=[0, 2, 4], help="busy loops beside it")
    parser.add_argument(
        "--fixed", nargs="+", type=int, default=sorted({1, max(1, cores // 2), max(1, cores - 1), cores})
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender, at least 5 for a figure")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--quick", action="store_true", help="three short runs")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds = min(options.runs, 3), min(options.seconds, 4.0)

    path = options.model or str(starter_path())
    load = LoadSettings(path, n_ctx=MOST_TOKENS + 256, n_sequences=1, draft="off")
    rows = report(asyncio.run(measure(load, options)), cores)
    if options.json:
        result = {"model": Path(path).name, "cores": cores, "runs": options.runs, "rows": rows}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    names = [ADAPTIVE, *(f"fixed {n}" for n in options.fixed)]
    sys.stdout.write(f"{Path(path).name}, {cores} cores, median of {options.runs} runs, tokens per second\n")
    heads = "".join(f"{name:>11}" for name in names)
    sys.stdout.write(f"{'loops':>6}{heads}{'/ cores':>9}{'/ best fixed':>14}\n")
    for row in rows:
        rates = "".join(f"{row['tokens_per_s'][name]:11.1f}" for name in names)
        over_cores, over_best = (
            "-" if ratio is None else f"{ratio:.3f}"
            for ratio in (row["adaptive_over_cores"], row["adaptive_over_best_fixed"])
        )
        sys.stdout.write(f"{row['loops']:6}{rates}{over_cores:>9}{over_best:>14}\n")


if __name__ == "__main__":
    main()
