"""The contenders of `speculation.py`, on one engine."""

from collections.abc import Sequence
from typing import Any

from speculation_texts import KINDS, OPEN

from edgechat.engine.drafting import Decides, Drafter
from edgechat.engine.engine import Engine
from edgechat.engine.process.draft_loading import LIKELY, WORTH, best_speedup
from edgechat.engine.process.messages import Event, Finished, Generate, Refused
from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.cost import CostTable, StepCost, ceiling
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.engine.speculation.measuring import completed, step_costs
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round, SpeculationStats
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from models.chat import ChatMessage
from models.chat_template import ChatTemplate

MAIN = ("off", "ngram", "auto")
LENGTHS = range(1, 9)


class Fixed:
    """Always so many drafts; the opposite of a controller."""

    def __init__(self, longest: int) -> None:
        """Verify `longest` drafts in each step that has them."""
        self.longest = longest
        self.start()

    def start(self) -> None:
        """A new answer begins."""
        self._rounds = self._tokens = self._drafted = self._accepted = 0

    def pause(self, rows: int = 0) -> int:
        """Never."""
        return 0

    def passed(self, n_steps: int) -> None:
        """There are none."""

    def plan(self, drafts: Sequence[Draft], rows: int = 0) -> int:
        """All that there are."""
        return min(len(drafts), self.longest)

    def wants_more(
        self, source: Source, drafts: Sequence[Draft], rows: int = 0, catch_up_s: float = 0.0
    ) -> bool:
        """Up to the length."""
        return len(drafts) < self.longest

    def record(self, round_: Round) -> None:
        """Count."""
        self._rounds += 1
        self._tokens += len(round_.tokens)
        self._drafted += len(round_.drafts)
        self._accepted += round_.n_accepted

    def stats(self) -> SpeculationStats:
        """The counts."""
        return SpeculationStats(self._rounds, self._tokens, self._drafted, self._accepted, 0.0, 0.0, "")


class Stage:
    """The models, and one engine whose drafter changes from run to run."""

    def __init__(self, target: str, draft: str | None, threads: int, n_ctx: int) -> None:
        """Load."""
        settings = LoadSettings(target, n_ctx=n_ctx, n_sequences=1, n_threads=threads)
        self.runtime: Any = LlamaCppRuntime.load(settings)
        self.drafts: Any = None
        if draft is not None:
            self.drafts = LlamaCppRuntime.load(
                LoadSettings(draft, n_ctx=n_ctx, n_sequences=1, n_threads=threads)
            )
        source = self.runtime.info.chat_template
        eos = max(self.runtime.info.eog_ids)
        self.template = (
            ChatTemplate(source, bos=None, eos=self.runtime.tokenizer.name(eos)) if source else None
        )
        self.events: list[Event] = []
        self.engine = Engine(self.runtime, self.template, self.events.append)  # type: ignore[arg-type]
        self.calibration: dict[str, Calibration] = {}
        self.costs: dict[str, StepCost] = {}
        self.model: DraftModel | None = None
        self.worth = False
        """Whether the draft model could pay."""
        self.table = CostTable((1,), (1.0,))

    def measure(self, seconds: float) -> dict[str, Any]:
        """V(k), and the draft model's step."""
        self.table = completed(step_costs(self.runtime, seconds=seconds))
        plain = self.table.seconds[0]
        measured: dict[str, Any] = {
            "v": {str(k): s / plain for k, s in zip(self.table.widths, self.table.seconds, strict=True)},
            "plain_ms": plain * 1000,
            "ceiling": ceiling(StepCost(self.table), 15),
        }
        if self.drafts is not None:
            step_s = step_costs(self.drafts, seconds=seconds / 4, widths=(1,)).seconds[0]
            self.model = DraftModel(self.drafts, self.runtime.tokenizer.n_vocab, step_s)
            measured["draft_over_plain"] = step_s / plain
            could_give = best_speedup(self.table, step_s, LIKELY)
            measured["draft_could_give"] = could_give
            self.worth = could_give >= WORTH
        return measured

    def contenders(self) -> list[str]:
        """Those that can run here."""
        fixed = [f"fixed-{k}" for k in LENGTHS]
        return [*MAIN, *fixed, *(("draft", "draft-4") if self.model is not None else ())]

    def drafter(self, name: str) -> Drafter | None:
        """What drafts in a run. It knows no words of the runs before, but how often drafts stood and what
        steps took, as an engine does that goes on."""
        if name == "off":
            return None
        decides = None
        if "-" in name:
            length = int(name.partition("-")[2])

            def decides() -> Decides:
                return Fixed(length)

        with_model = name.startswith("draft") or (name == "auto" and self.worth)
        return Drafter(
            self.costs.setdefault(name, StepCost(self.table)),
            eog=self.runtime.info.eog_ids,
            ngrams=not name.startswith("draft"),
            model=self.model if with_model else None,
            decides=decides,
            calibration=self.calibration.setdefault(name, Calibration()),
        )

    def begin(self, name: str, kind: str, n_tokens: int) -> None:
        """Have an answer begun, whose steps are the engine's."""
        prompt, sampling = KINDS[kind]
        self.engine.draft_with(self.drafter(name))
        self.events.clear()
        messages = (ChatMessage("user", prompt),)
        self.engine.submit(
            Generate(
                0, messages=messages, sampling=sampling, max_tokens=n_tokens, conversation=kind,
                ignore_eog=KINDS[kind][1] is OPEN,
            )
        )  # fmt: skip

    def finished(self) -> Finished:
        """What became of the answer that was begun."""
        last = self.events[-1]
        if isinstance(last, Refused):
            raise RuntimeError(last.error)
        if not isinstance(last, Finished):
            raise RuntimeError("no answer")
        return last

    def ask(self, name: str, kind: str, n_tokens: int) -> Finished:
        """One run."""
        self.begin(name, kind, n_tokens)
        while self.engine.step():
            pass
        return self.finished()

    def close(self) -> None:
        """Free the models."""
        if self.drafts is not None:
            self.drafts.close()
        self.runtime.close()
