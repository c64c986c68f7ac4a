"""Random requests, cancellations and failures while everything is drafted for: the same texts as alone."""

import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.drafting import Drafter, longest_for
from edgechat.engine.process.messages import Finished, Generate, Refused
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.records import FinishReason
from edgechat.runtimes.base import Chunk, DecodeFailed, Logits
from tests.edgechat.engine.drafts import Whims, cost
from tests.edgechat.engine.harness import GREEDY, Bench
from tests.edgechat.engine.test_engine_chaos import alone, machines, operations
from tests.edgechat.scripted_runtime import ScriptedRuntime, toy_logits


def mostly_right(tokens: Sequence[int], n_vocab: int) -> Logits:
    """A draft model that knows the target well, and errs where it likes."""
    return toy_logits(tokens if sum(tokens) % 5 else tokens[:-1], n_vocab)


@settings(max_examples=100, deadline=None)
@given(machines, st.lists(operations, min_size=12, max_size=40), st.integers(0, 2**16), st.booleans())
def test_chaos(machine: dict, script: list[tuple[object, ...]], seed: int, n_drafts_fail: bool) -> None:
    failing = [False]
    whims = random.Random(seed)

    def decode(batch: Sequence[Chunk]) -> None:
        if failing[0]:
            raise DecodeFailed("no")

    def decode_drafts(batch: Sequence[Chunk]) -> None:
        if n_drafts_fail and whims.random() < 0.01:
            raise DecodeFailed("no")

    runtime = ScriptedRuntime(on_decode=decode, **machine)
    drafts = ScriptedRuntime(on_decode=decode_drafts, logits=mostly_right, **machine)
    seeds = itertools.count(seed)
    drafter = Drafter(
        cost(),
        eog=runtime.info.eog_ids,
        model=DraftModel(drafts, runtime.tokenizer.n_vocab),
        longest=longest_for(runtime.can, 15),
        decides=lambda: Whims(next(seeds)),
    )
    bench = Bench(runtime, max_waiting=12, drafter=drafter)
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
        if isinstance(end, Refused):
            assert failed or "waiting" in end.error, end
            continue
        answer = alone(prompt, count, runtime.n_ctx, runtime.can.shift)
        assert end.tokens == answer[: len(end.tokens)]
        if end.reason == FinishReason.LENGTH:
            assert len(end.tokens) == count
    for slot in bench.engine._cache.slots:
        assert not slot.busy
        assert runtime.tokens(slot.number) == slot.tokens
    assert not drafter._answers
