"""Random requests, cancellations and failures while everything is drafted for: the same texts as alone."""

import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.drafting import Drafter, longest_for
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.runtimes.base import Chunk, DecodeFailed, Logits
from tests.edgechat.engine.chaos import Chaos, machines, scripts
from tests.edgechat.engine.drafts import Whims, cost
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime, toy_logits


def mostly_right(tokens: Sequence[int], n_vocab: int) -> Logits:
    """A draft model that knows the target well, and errs where it likes."""
    return toy_logits(tokens if sum(tokens) % 5 else tokens[:-1], n_vocab)


@settings(max_examples=100, deadline=None)
@given(machines, scripts, st.integers(0, 2**16), st.booleans())
def test_chaos(machine: dict, script: list[tuple[object, ...]], seed: int, n_drafts_fail: bool) -> None:
    whims = random.Random(seed)

    def decode_drafts(batch: Sequence[Chunk]) -> None:
        if n_drafts_fail and whims.random() < 0.01:
            raise DecodeFailed("no")

    chaos = Chaos()
    runtime = ScriptedRuntime(on_decode=chaos.decode, **machine)
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
    chaos.play(bench, script)
    chaos.check(bench)
    assert not drafter._answers
