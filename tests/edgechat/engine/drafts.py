"""What the tests of drafting share: texts that half repeat themselves, a model that half agrees, whims."""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgechat.engine.drafting import Drafter
from edgechat.engine.speculation.cost import CostTable, StepCost
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.engine.speculation.measuring import TYPICAL
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round, SpeculationStats
from edgechat.records import Capabilities
from edgechat.runtimes.base import Logits
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ALL_CAPABLE, ScriptedRuntime, toy_logits

STEP_S = 0.05


def _die(tokens: Sequence[int], sides: int) -> int:
    return zlib.crc32(np.asarray([*tokens, 7], dtype=np.int32).tobytes()) % sides


def restless(tokens: Sequence[int], n_vocab: int) -> Logits:
    """Three times in four the last token decides what comes, so that the text repeats itself."""
    return toy_logits(tokens if _die(tokens, 4) == 0 else tokens[-1:], n_vocab)


def half_agreeing(tokens: Sequence[int], n_vocab: int) -> Logits:
    """A draft model that is right two times in three where the text repeats itself."""
    return toy_logits(tokens[-2:] if _die(tokens[-5:], 3) == 0 else tokens[-1:], n_vocab)


class Whims:
    """Drafts and verifies as many as chance says; remembers what it was told."""

    def __init__(self, seed: int = 0, longest: int = 15) -> None:
        self.longest = longest
        self.rounds: list[Round] = []
        self._random = random.Random(seed)

    def start(self) -> None:
        """A new answer begins."""
        self.rounds = []

    def pause(self, rows: int = 0) -> int:
        """Seldom."""
        return self._random.randint(1, 3) if self._random.random() < 0.1 else 0

    def passed(self, n_steps: int) -> None:
        """Remember them as well."""
        self.rounds += [Round([], 0, 0, [-1], None)] * n_steps

    def plan(self, drafts: Sequence[Draft], rows: int = 0) -> int:
        """Any number."""
        return self._random.randint(0, len(drafts))

    def wants_more(
        self, source: Source, drafts: Sequence[Draft], rows: int = 0, catch_up_s: float = 0.0
    ) -> bool:
        """Mostly."""
        return self._random.random() < 0.8

    def record(self, round_: Round) -> None:
        """Remember it."""
        self.rounds.append(round_)

    def stats(self) -> SpeculationStats:
        """Of all rounds."""
        drafted = sum(len(round_.drafts) for round_ in self.rounds)
        accepted = sum(round_.n_accepted for round_ in self.rounds)
        tokens = sum(len(round_.tokens) for round_ in self.rounds)
        return SpeculationStats(len(self.rounds), tokens, drafted, accepted, 1.0, 1.0, "")


class Always(Whims):
    """Drafts and verifies all that it can get, up to a length."""

    def pause(self, rows: int = 0) -> int:
        """Never."""
        return 0

    def plan(self, drafts: Sequence[Draft], rows: int = 0) -> int:
        """All."""
        return min(len(drafts), self.longest)

    def wants_more(
        self, source: Source, drafts: Sequence[Draft], rows: int = 0, catch_up_s: float = 0.0
    ) -> bool:
        """Up to the length."""
        return len(drafts) < self.longest


def cost(shape: Sequence[float] = TYPICAL, step_s: float = STEP_S) -> StepCost:
    """V as it usually is."""
    return StepCost(CostTable(tuple(range(1, len(shape) + 1)), tuple(step_s * v for v in shape)))


def bench(
    *,
    ngrams: bool = False,
    model: Callable[[Sequence[int], int], Logits] | None = None,
    decides: Callable[[], Any] | None = None,
    logits: Callable[[Sequence[int], int], Logits] = restless,
    can: Capabilities = ALL_CAPABLE,
    n_ctx: int = 512,
    n_batch: int = 64,
    drafting: bool = True,
    drafting_clock: Callable[[], float] = lambda: 0.0,
    **options: Any,
) -> Bench:
    """An engine on the scripted runtime that drafts; `bench.drafts` is the draft model's runtime."""
    runtime = ScriptedRuntime(logits=logits, can=can, n_ctx=n_ctx, n_batch=n_batch)
    drafter = None
    if drafting:
        draft_model = None
        if model is not None:
            drafts = ScriptedRuntime(logits=model, can=can, n_ctx=n_ctx, n_batch=n_batch)
            draft_model = DraftModel(drafts, runtime.tokenizer.n_vocab, step_s=0.01)
        drafter = Drafter(
            cost(),
            eog=runtime.info.eog_ids,
            ngrams=ngrams,
            model=draft_model,
            decides=decides,
            clock=drafting_clock,
        )
    return Bench(runtime, drafter=drafter, **options)
