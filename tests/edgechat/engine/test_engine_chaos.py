"""Random requests, cancellations and failures on random machines: every request ends once, and rightly."""

from collections.abc import Sequence

from hypothesis import given, settings
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


@settings(max_examples=150, deadline=None)
@given(machines, st.lists(operations, min_size=12, max_size=40))
def test_chaos(machine: dict[str, object], script: list[tuple[object, ...]]) -> None:
    failing = [False]

    def decode(batch: Sequence[Chunk]) -> None:
        if failing[0]:
            raise DecodeFailed("no")

    runtime = ScriptedRuntime(on_decode=decode, **machine)  # type: ignore[arg-type]
    bench = Bench(runtime, max_waiting=12)
    asked: dict[int, tuple[str, int]] = {}
    failed = False
    for operation in script:
        match operation:
            case ("submit", str() as prompt, int() as count, str() as conversation):
                id = len(asked)
                asked[id] = (prompt, count)
                bench.engine.submit(
                    Generate(id, prompt=prompt, sampling=GREEDY, max_tokens=count, conversation=conversation)
                )
            case ("step", int() as count):
                for _ in range(count):
                    bench.engine.step()
            case ("cancel", int() as id):
                bench.engine.cancel(id)
            case ("fail", bool() as now):
                failing[0] = now
                failed = failed or now
            case ("release",):
                bench.engine.release_idle()
    failing[0] = False
    bench.run(5000)
    for id, (prompt, count) in asked.items():
        (end,) = bench.of(id, (Finished, Refused))
        assert bench.of(id)[-1] is end
        if isinstance(end, Refused):
            assert failed or "waiting" in end.error, end
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
