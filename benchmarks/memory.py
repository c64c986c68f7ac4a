"""Planned against measured memory of the engine's process.

    python benchmarks/memory.py MODEL... [--ctx 2048 8192 16384] [--kv-type f16 q8_0] [--fill] [--json]

Measured is VmHWM, the most resident memory that the engine's process ever had, after a prompt of more than a
full batch and some tokens of an answer. llama.cpp clears its cache when it makes it, so that the whole
context's memory is resident from the start, however short the prompt is; what grows with the filling of the
context is the attention's mask, some 1 to 16 MiB. `--fill` fills the context, which takes long. Figures don't
depend on what else the machine does. Linux only.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from edgechat import hardware
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Generate
from edgechat.library.needs import Needs
from edgechat.library.plan import plan
from edgechat.library.resolve import resolve
from edgechat.records import LoadSettings, SamplingSettings

MIB = 2**20
BATCH_WORDS = 300
"""Pairs of a word and a number that fill a batch of 512 tokens, whatever the tokenizer."""
DECODED = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", help="paths or names")
    parser.add_argument("--ctx", nargs="+", type=int, default=[2048, 8192, 16384])
    parser.add_argument("--kv-type", nargs="+", default=["f16", "q8_0"], choices=["f16", "q8_0", "q4_0"])
    parser.add_argument("--fill", action="store_true", help="fill the context with the prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.models:
        path = resolve(name)
        for n_ctx in options.ctx:
            for kv_type in options.kv_type:
                settings = LoadSettings(str(path), n_ctx=n_ctx, kv_type=kv_type, n_threads=options.threads)
                planned, guess = (plan(path, settings, exact=exact).asked_needs for exact in (True, False))
                measured = asyncio.run(_measure(settings, fill=options.fill))
                rows.append(_row(path, settings, planned, guess, measured))
                if not options.json:
                    _print(rows[-1], head=len(rows) == 1)
    if options.json:
        print(json.dumps({"rows": rows, "available": hardware.memory().available}, indent=1))


async def _measure(settings: LoadSettings, *, fill: bool) -> dict[str, int]:
    """VmHWM of an engine that has worked, and of what it was made, in bytes."""
    client = await EngineClient.start(settings)
    try:
        words = int(settings.n_ctx * 0.62) if fill else min(BATCH_WORDS, settings.n_ctx // 2)
        prompt = " ".join(f"word {n % 10}" for n in range(words))
        request = Generate(
            id=0,
            prompt=prompt,
            max_tokens=settings.n_ctx if fill and settings.n_ctx <= 4096 else DECODED,
            ignore_eog=True,
            overflow="window",
            sampling=SamplingSettings(temperature=0, seed=1),
        )
        async for _ in client.generate(request):
            pass
        return _status(client.pid)
    finally:
        await client.close()


def _status(pid: int) -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if words and words[0] in FIELDS}


FIELDS = ("VmHWM:", "RssAnon:", "RssFile:")


def _row(
    path: Path, settings: LoadSettings, needs: Needs, guess: Needs, measured: dict[str, int]
) -> dict[str, Any]:
    peak = measured["VmHWM"]
    return {
        "model": path.stem,
        "ctx": settings.n_ctx,
        "kv_type": settings.kv_type,
        "planned": needs.peak,
        "estimated": guess.peak,
        "measured": peak,
        "anonymous": measured["RssAnon"],
        "file": measured["RssFile"],
        "ratio": round(needs.peak / peak, 4),
        "estimate_ratio": round(guess.peak / peak, 4),
        "difference": needs.peak - peak,
        "needs": msgspec.to_builtins(needs),
    }


def _print(row: dict[str, Any], *, head: bool) -> None:
    if head:
        print(
            f"{'model':36} {'ctx':>6} {'kv':5} {'planned':>8} {'measured':>8} {'ratio':>6} {'MiB off':>7}",
            end="",
        )
        print("  by header")
    cells = (
        f"{row['model'][:36]:36} {row['ctx']:6} {row['kv_type']:5}",
        f"{row['planned'] / MIB:8.1f} {row['measured'] / MIB:8.1f}",
        f"{row['ratio']:6.3f} {row['difference'] / MIB:+7.1f}      {row['estimate_ratio']:6.3f}",
    )
    print(*cells, flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        import os

        os.environ["EDGECHAT_HOME"] = home
        main()
