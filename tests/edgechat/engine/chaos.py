"""Random requests, cancellations and failures, on random machines: what is done, and what must come of it."""

from collections.abc import Sequence

from hypothesis import strategies as st

from edgechat.engine.process.messages import Finished, Generate, Refused
from edgechat.records import Capabilities, FinishReason
from edgechat.runtimes.base import Chunk, DecodeFailed
from tests.edgechat.engine.harness import GREEDY, Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime

PROMPTS = ("a", "ab", "abc " * 4, "abc " * 9, "Hello", "Hello world", "x" * 40, "y" * 90)
expected: dict[tuple[str, int, int, bool], tuple[int, ...]] = {}


def alone(prompt: str, max_tokens: int, n_ctx: int, shift: bool) -> tuple[int, ...]:
    """The answer of an engine that does nothing else."""
    key = (prompt, max_tokens, n_ctx, shift)
    if key not in expected:
        can = Capabilities(shift=shift, rollback=-1, fork=False)
        bench = Bench(ScriptedRuntime(n_ctx=n_ctx, n_sequences=1, can=can))
        bench.engine.submit(Generate(1, prompt=prompt, sampling=GREEDY, max_tokens=max_tokens))
        bench.run()
        expected[key] = bench.finished(1).tokens
    return expected[key]


submissions = st.tuples(
    st.just("submit"),
    st.sampled_from(PROMPTS),
    st.sampled_from([1, 7, 30, 60, 150]),
    st.sampled_from(["", "p", "q"]),
)
operations = st.one_of(
    submissions,
    submissions,
    submissions,
    st.tuples(st.just("step"), st.integers(1, 12)),
    st.tuples(st.just("step"), st.integers(1, 60)),
    st.tuples(st.just("cancel"), st.integers(0, 12)),
    st.tuples(st.just("fail"), st.sampled_from([False, False, True])),
    st.tuples(st.just("release")),
)
scripts = st.lists(operations, min_size=12, max_size=40)
machines = st.builds(
    dict,
    n_ctx=st.sampled_from([100, 130, 400]),
    n_batch=st.sampled_from([32, 64]),
    n_sequences=st.integers(1, 4),
    can=st.builds(
        Capabilities,
        shift=st.booleans(),
        rollback=st.sampled_from([-1, 0, 5]),
        fork=st.booleans(),
    ),
)


class Chaos:
    """One script, played on one engine."""

    def __init__(self) -> None:
        self.failing = False
        self.failed = False
        """Whether it ever was."""
        self.asked: dict[int, tuple[str, int]] = {}

    def decode(self, batch: Sequence[Chunk]) -> None:
        """What the runtime calls before each batch."""
        if self.failing:
            raise DecodeFailed("no")

    def play(self, bench: Bench, script: Sequence[tuple[object, ...]]) -> None:
        """Do all of the script, and let the engine come to its end."""
        for operation in script:
            match operation:
                case ("submit", str() as prompt, int() as count, str() as conversation):
                    id = len(self.asked)
                    self.asked[id] = (prompt, count)
                    bench.engine.submit(
                        Generate(
                            id, prompt=prompt, sampling=GREEDY, max_tokens=count, conversation=conversation
                        )
                    )
                case ("step", int() as count):
                    for _ in range(count):
                        bench.engine.step()
                case ("cancel", int() as id):
                    bench.engine.cancel(id)
                case ("fail", bool() as now):
                    self.failing = now
                    self.failed = self.failed or now
                case ("release",):
                    bench.engine.release_idle()
        self.failing = False
        bench.run(5000)

    def check(self, bench: Bench) -> None:
        """Every request ended once, with the text that an engine writes which does nothing else."""
        runtime = bench.runtime
        for id, (prompt, count) in self.asked.items():
            (end,) = bench.of(id, (Finished, Refused))
            assert bench.of(id)[-1] is end
            if isinstance(end, Refused):
                assert self.failed or "waiting" in end.error, end
                continue
            answer = alone(prompt, count, runtime.n_ctx, runtime.can.shift)
            assert end.tokens == answer[: len(end.tokens)]
            text = b"".join(map(runtime.tokenizer.piece, end.tokens)).decode("utf-8", "replace")
            assert bench.text(id) == text
            if end.reason == FinishReason.LENGTH:
                assert len(end.tokens) == count
        for slot in bench.engine._cache.slots:
            assert not slot.busy
            assert runtime.tokens(slot.number) == slot.tokens
