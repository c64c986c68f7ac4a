"""Time to the first token of a conversation's next turn: cold, warm, and after a restart from disk.

    python benchmarks/prefix.py [MODEL.gguf] [--tokens 1000] [--runs 5] [--threads N] [--json]

The conversation has about so many tokens. Each run asks the same new question three ways:

    cold        an engine that knows nothing: the whole conversation is computed
    next turn   the engine that gave the last answer: only the question is
    restart     a new process that finds the conversation's state on disk; loading the model is not counted

The time is the engine's own, from the request's arrival to its first token, reading the state included. The
states lie in a temporary folder: the page cache is warm, as it is when a program is closed and opened again.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile

from edgechat import hardware
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Delta, Finished, Generate
from edgechat.library.starter import starter_path
from edgechat.records import LoadSettings, SamplingSettings, Timings
from models.chat import ChatMessage

SENTENCE = "The harbour was quiet, the boats lay still, and nobody on the quay spoke a word. "
QUESTION = "What was it like in the harbour?"
WAYS = ("cold", "next turn", "restart")
GREEDY = SamplingSettings(temperature=0)


async def ask(client: EngineClient, name: str, *contents: str, max_tokens: int) -> tuple[str, Timings]:
    """The answer, and what it took."""
    messages = tuple(
        ChatMessage("assistant" if index % 2 else "user", content) for index, content in enumerate(contents)
    )
    request = Generate(
        0, messages, sampling=GREEDY, max_tokens=max_tokens, ignore_eog=True, conversation=name
    )
    text = ""
    async for event in client.generate(request):
        match event:
            case Delta():
                text += event.text
            case Finished():
                return text, event.timings
    raise RuntimeError("the engine refused the request")


async def one_run(settings: LoadSettings, history: str, run: int) -> dict[str, Timings]:
    """The three ways, once."""
    found: dict[str, Timings] = {}
    warm, later, cold = (f"benchmark-{run}-{way}" for way in WAYS)
    client = await EngineClient.start(settings)
    answer, _ = await ask(client, later, history, max_tokens=32)
    await ask(client, warm, history, max_tokens=32)
    _, found["next turn"] = await ask(client, warm, history, answer, QUESTION, max_tokens=1)
    await client.close()  # which saves the conversations
    client = await EngineClient.start(settings)
    _, found["restart"] = await ask(client, later, history, answer, QUESTION, max_tokens=1)
    await client.close()
    client = await EngineClient.start(settings)
    _, found["cold"] = await ask(client, cold, history, answer, QUESTION, max_tokens=1)
    await client.close()
    return found


async def measure(settings: LoadSettings, history: str, runs: int) -> dict[str, list[Timings]]:
    """The three ways in each run."""
    found: dict[str, list[Timings]] = {way: [] for way in WAYS}
    for run in range(runs):
        sys.stderr.write(f"\rrun {run + 1} of {runs} ")
        for way, timings in (await one_run(settings, history, run)).items():
            found[way].append(timings)
    sys.stderr.write("\r" + " " * 20 + "\r")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time to first token: cold, next turn, after a restart.")
    parser.add_argument("model", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--tokens", type=int, default=1000, help="about as long is the conversation")
    parser.add_argument("--runs", type=int, default=5, help="at least 5 for a figure")
    parser.add_argument("--threads", type=int, default=hardware.physical_cores())
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        settings = LoadSettings(
            options.model or str(starter_path()),
            n_ctx=2 * options.tokens + 512,
            n_sequences=2,
            n_threads=options.threads,
            state_folder=folder,
            state_memory_bytes=2**30,
            state_disk_bytes=2**32,
        )
        history = SENTENCE * max(1, options.tokens // 18)
        found = asyncio.run(measure(settings, history, options.runs))
    medians = {way: statistics.median(one.ttft_s for one in found[way]) for way in WAYS}
    rows = {
        way: {
            "ttft_s": medians[way],
            "prefill_tokens": found[way][0].prefill_tokens,
            "cached_tokens": found[way][0].cached_tokens,
            "cold_over_this": medians["cold"] / medians[way],
        }
        for way in WAYS
    }
    if options.json:
        sys.stdout.write(json.dumps({"threads": options.threads, "ways": rows}, indent=2) + "\n")
        return
    sys.stdout.write(f"{'':12}{'first token':>14}{'computed':>10}{'spared':>8}{'cold / this':>13}\n")
    for way, row in rows.items():
        sys.stdout.write(
            f"{way:12}{row['ttft_s'] * 1000:11.1f} ms{row['prefill_tokens']:10}{row['cached_tokens']:8}"
            f"{row['cold_over_this']:13.1f}\n"
        )


if __name__ == "__main__":
    main()
