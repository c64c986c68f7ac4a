"""What the tests of summaries share: conversations too long for the context, and what is left of them."""

from collections.abc import Sequence
from typing import Any

from edgechat.engine import summary
from edgechat.engine.process.messages import Evicted, Summarizing
from edgechat.records import Capabilities
from tests.edgechat.engine.harness import Bench, message
from tests.edgechat.scripted_runtime import ScriptedRuntime

N_CTX = 2000
ASKED = summary.INSTRUCTION + "<|im_end|>\n<|im_start|>assistant\n"
SUMMARY = "They spoke of letters. The first was a."


def bench_of(can: Capabilities | None = None, says: str = SUMMARY, **options: Any) -> Bench:
    """An engine that has room for a few questions, on a model that sums up as `says`."""
    if can is not None:
        options["can"] = can
    engine = {name: options.pop(name) for name in ("states", "max_waiting") if name in options}
    bench = Bench(ScriptedRuntime(n_ctx=N_CTX, n_batch=256, **options), **engine)
    bench.runtime.answer(ASKED, says)
    return bench


def question(i: int) -> str:
    """The i-th, of 302 tokens."""
    return f"{i:02}" + "x" * 300


def converse(
    bench: Bench, turns: Sequence[int], contents: list[str] | None = None, **options: Any
) -> list[str]:
    """Ask question after question; returns all contents."""
    contents = ["!Be kind."] if contents is None else contents
    options = {"conversation": "a", "summarize": True, "max_tokens": 60} | options
    for i in turns:
        contents.append(question(i))
        bench.runtime.answer(contents[-1] + "<|im_end|>\n<|im_start|>assistant\n", f"{i:02}" + "y" * 30)
        contents.append(bench.ask(i, *contents, **options))
        assert contents[-1] == f"{i:02}" + "y" * 30
    return contents


def waiting_for_it(bench: Bench) -> list[str]:
    """Step into the middle of a summary; the contents with the question that waits for it."""
    contents = converse(bench, range(3))
    for i in range(3, 9):
        contents = [*contents, question(i)]
        bench.submit(i, *contents, conversation="a", summarize=True, max_tokens=60)
        for _ in range(4):
            bench.engine.step()
        if bench.of(i, Summarizing):
            return contents
        bench.run()
        contents.append(bench.text(i))
    raise AssertionError("nothing goes")


def seen(contents: Sequence[str], n_gone: int, text: str = SUMMARY) -> str:
    """What the template would write of what is left, with the summary in its first message."""
    roles = ("user", "assistant")
    left = list(contents[1 + n_gone :])
    if text:
        left[0] = summary.BEFORE + text + summary.AFTER + left[0]
    parts = [message(roles[i % 2], content) for i, content in enumerate(left)]
    return message("system", contents[0][1:]) + "".join(parts).removesuffix("<|im_end|>\n")


def text_of(bench: Bench, sequence: int = 0) -> str:
    """What a sequence of the cache holds."""
    return "".join(map(bench.runtime.tokenizer.name, bench.runtime.tokens(sequence)))


def held(bench: Bench) -> str:
    """The text of the sequence that holds most."""
    return max((text_of(bench, i) for i in range(bench.runtime.n_sequences)), key=len)


def evictions(bench: Bench, id: int) -> list[Evicted]:
    """What went with one request."""
    return [event for event in bench.of(id, Evicted) if event.n_tokens]


def first_eviction(bench: Bench) -> int:
    """The turn with which something went."""
    return next(event.id for event in bench.events if isinstance(event, Evicted) and event.n_tokens)
