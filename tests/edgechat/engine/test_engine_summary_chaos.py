"""Summaries under random questions, steps, cancellations and failures."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.process.messages import Finished, Refused
from edgechat.records import Capabilities
from edgechat.runtimes.base import Chunk, DecodeFailed
from tests.edgechat.engine.summing import N_CTX, SUMMARY, bench_of

operations = st.one_of(
    st.tuples(
        st.just("ask"), st.sampled_from("abc"), st.integers(1, 500), st.integers(1, 300), st.booleans()
    ),
    st.tuples(st.just("step"), st.integers(1, 200), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("fail"), st.integers(0, 3), st.just(0), st.just(0), st.just(False)),
)
machines = st.builds(
    dict,
    n_sequences=st.integers(1, 3),
    can=st.builds(
        Capabilities, shift=st.booleans(), rollback=st.sampled_from([-1, 0, 5]), fork=st.booleans()
    ),
)


class Conversations:
    """What three people say, in turn with what they are answered."""

    def __init__(self) -> None:
        self.contents: dict[str, list[str]] = {name: [] for name in "abc"}
        self.open: dict[str, int] = {}


@settings(max_examples=60, deadline=None)
@given(machines, st.lists(operations, min_size=6, max_size=24), st.sampled_from([SUMMARY, "", "no end"]))
def test_chaos(machine: dict[str, Any], script: list[tuple[Any, ...]], says: str) -> None:
    failing: list[int] = [0]
    bench = bench_of(says=says, max_waiting=12, **machine)
    before = bench.runtime.on_decode

    def decode(batch: Sequence[Chunk]) -> None:
        before(batch)
        if failing[0]:
            failing[0] -= 1
            raise DecodeFailed("no")

    bench.runtime.on_decode = decode
    people = Conversations()
    asked: dict[int, str] = {}

    def settle(name: str) -> None:
        id = people.open.pop(name, None)
        if id is not None:
            bench.run()
            people.contents[name].append(bench.text(id) or "-")

    for kind, first, length, count, summarize in script:
        if kind == "ask":
            settle(first)
            id = len(asked)
            asked[id] = first
            people.contents[first].append(f"{id}" + "q" * length)
            people.open[first] = id
            bench.submit(
                id, *people.contents[first], conversation=first, summarize=summarize, max_tokens=count
            )
        elif kind == "step":
            for _ in range(first):
                bench.engine.step()
        elif kind == "cancel":
            bench.engine.cancel(first)
        else:
            failing[0] = first
    failing[0] = 0
    bench.run()
    for id in asked:
        (end,) = bench.of(id, (Finished, Refused))
        assert bench.of(id)[-1] is end
        if isinstance(end, Finished):
            text = b"".join(map(bench.runtime.tokenizer.piece, end.tokens)).decode("utf-8", "replace")
            assert bench.text(id) == text
            assert end.n_context <= N_CTX
            assert 0 <= end.n_pinned <= end.n_context
    for slot in bench.engine._cache.slots:
        assert not slot.busy
        assert bench.runtime.tokens(slot.number) == slot.tokens
