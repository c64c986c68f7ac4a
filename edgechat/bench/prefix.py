"""Time to the first token of a conversation's next turn: cold, warm, and after a restart."""

import os
import tempfile
from statistics import median

import msgspec

from edgechat.bench import texts
from edgechat.bench.asking import Timed, ask, engine
from edgechat.bench.plan import Plan, median_ratio
from edgechat.bench.results import PrefixResult
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Generate
from models.chat import ChatMessage

ANSWER_TOKENS = 8


async def measure(plan: Plan) -> PrefixResult:
    """The same question three ways, in each run. States lie in a folder of their own.

    Raises:
        EdgechatError: an engine failed.
    """
    runs = plan.sizes.prefix_runs
    cold: list[float] = []
    warm: list[float] = []
    restarted: list[float] = []
    n_prompt = 0
    history = texts.passage(plan.sizes.prefix_tokens)
    with tempfile.TemporaryDirectory(prefix="edgechat-bench-") as folder:
        load = msgspec.structs.replace(
            plan.load,
            n_ctx=texts.room(history, 512),
            n_sequences=2,
            draft="off",
            state_folder=folder,
            state_memory_bytes=2**30,
            state_disk_bytes=2**33,
        )
        for run in range(runs):
            plan.tell(f"prefix, run {run + 1} of {runs}")
            name = f"bench-{os.getpid()}-{run}"
            async with engine(load) as client:  # it saves the conversation when it ends
                answer = (await _ask(client, f"{name}-a", history, n=ANSWER_TOKENS)).text
                await _ask(client, f"{name}-b", history, n=ANSWER_TOKENS)
                timed = await _ask(client, f"{name}-b", history, answer, texts.QUESTION)
                warm.append(timed.finished.timings.ttft_s)
            async with engine(load) as client:
                timed = await _ask(client, f"{name}-a", history, answer, texts.QUESTION)
                restarted.append(timed.finished.timings.ttft_s)
            without = msgspec.structs.replace(load, state_folder="", state_disk_bytes=0)
            async with engine(without) as client:
                timed = await _ask(client, f"{name}-c", history, answer, texts.QUESTION)
                cold.append(timed.finished.timings.ttft_s)
                n_prompt = timed.finished.timings.prefill_tokens
    return PrefixResult(
        prompt_tokens=n_prompt,
        runs=runs,
        cold_s=median(cold),
        next_turn_s=median(warm),
        restart_s=median(restarted),
        cold_over_next_turn=median_ratio(cold, warm),
        cold_over_restart=median_ratio(cold, restarted),
    )


async def _ask(client: EngineClient, conversation: str, *contents: str, n: int = 1) -> Timed:
    messages = tuple(
        ChatMessage("assistant" if index % 2 else "user", content) for index, content in enumerate(contents)
    )
    request = Generate(
        0, messages, sampling=texts.GREEDY, max_tokens=n, ignore_eog=True, conversation=conversation
    )
    return await ask(client, request)
