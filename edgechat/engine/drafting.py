"""Drafts for the answers that are being written: who proposes, how many are verified, what is learnt.

The engine asks, before each step, which tokens an answer's step shall verify, and says afterwards which of
them stood. Everything that decides is in `edgechat.engine.speculation`; this keeps one set of it for each
answer, and the order: words of the conversation first, which cost nothing, then the draft model.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgechat.engine.holes import Range
from edgechat.engine.speculation.accept import Verdict
from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.controller import Controller
from edgechat.engine.speculation.cost import StepCost
from edgechat.engine.speculation.draft_model import Choose, DraftModel, chooser
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round, SpeculationStats
from edgechat.engine.speculation.words import Library, Words
from edgechat.engine.turn import Turn
from edgechat.records import Capabilities, Speculation

LONGEST = 15
"""Most drafts in a step."""
SPOKEN = 2
"""Tokens that a draft model in step has to read: its own last draft, and the target's token after it."""


class Decides(Protocol):
    """`Controller`, or what stands in for it where something is measured."""

    longest: int

    def start(self) -> None:
        """A new answer begins."""
        ...

    def pause(self, rows: int = 0) -> int:
        """Steps to make before drafts are looked for again; 0: now."""
        ...

    def passed(self, n_steps: int) -> None:
        """So many plain steps were made without a look."""
        ...

    def plan(self, drafts: Sequence[Draft], rows: int = 0) -> int:
        """How many of `drafts` to verify."""
        ...

    def wants_more(
        self, source: Source, drafts: Sequence[Draft], rows: int = 0, catch_up_s: float = 0.0
    ) -> bool:
        """Whether to compute one more draft."""
        ...

    def record(self, round_: Round) -> None:
        """Learn from a step."""
        ...

    def stats(self) -> SpeculationStats:
        """Of the answer that is being written."""
        ...


@dataclass(slots=True)
class _Answer:
    """What is kept for one answer."""

    decides: Decides
    words: Words | None
    choose: Choose
    n_indexed: int
    """Tokens of the answer that the words have."""
    followed: bool = False
    """Whether the draft model has read the prompt."""
    draft_s: float = 0.0
    catch_up_s: float = 0.0
    n_computed: int = 0
    """Of the step at hand."""
    looking_s: float = 0.0
    """What looking for drafts, deciding and learning took since the last step was recorded."""
    rows: int = 0
    drafted: list[Draft] = field(default_factory=list)
    pause: int = 0
    """Steps of it that are to come."""
    n_passed: int = 0
    """Steps of it that were made: what decides is not told of each, for that took as long as a look."""

    def wake(self) -> None:
        """The pause is over."""
        if self.n_passed:
            self.decides.passed(self.n_passed)
        self.pause = self.n_passed = 0


class Drafter:
    """Drafts for all answers of one engine."""

    def __init__(
        self,
        cost: StepCost,
        *,
        eog: Iterable[int] = (),
        ngrams: bool = True,
        model: DraftModel | None = None,
        longest: int = LONGEST,
        decides: Callable[[], Decides] | None = None,
        calibration: Calibration | None = None,
        keep: Callable[[Calibration], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Draft for answers whose steps take what `cost` says.

        Args:
            cost: V of the target.
            eog: tokens after which nothing comes.
            ngrams: draft from the conversations' own words.
            model: drafts where the words have none.
            longest: most drafts in a step.
            decides: makes what decides how many to verify; None: a Controller for each answer at a time.
            calibration: what is known of how often drafts stand; None: nothing.
            keep: keeps what was learnt of that for the next run; None: it is forgotten.
            clock: seconds.
        """
        self.cost = cost
        self.longest = longest
        self.model = model
        self._eog = frozenset(eog)
        self._calibration = calibration or Calibration()
        self._keep = keep
        self.unsaved = False
        """Whether there is something for `save`."""
        self._library = Library() if ngrams else None
        self._make = decides or self._controller
        self._idle: list[Decides] = []
        self._answers: dict[int, _Answer] = {}
        self._clock = clock
        self._recording_s = 0.0  # in the step that is about to be observed
        self._observing_s = 0.0  # since a step was recorded

    def _controller(self) -> Controller:
        known: Mapping[Source, float] = {Source.MODEL: self.model.step_s} if self.model is not None else {}
        return Controller(self.cost, self._calibration, self.longest, known)

    # --- before a step

    def propose(self, turn: Turn, most: int, rows: int = 0) -> list[Draft]:
        """The tokens that the turn's next step shall verify after its last one.

        Args:
            turn: which answers.
            most: drafts that there is room for.
            rows: tokens of other answers in the same batch.
        """
        answer = self._answer(turn)  # indexes what was said: part of reading it, and not counted
        if answer.pause > 0:
            return answer.drafted
        answer.wake()
        began = self._clock()
        computed = answer.draft_s + answer.catch_up_s
        answer.rows = rows
        answer.drafted = []
        most = min(most, self.longest)
        if most > 0:
            answer.pause = answer.decides.pause(rows)
            if not answer.pause:
                answer.drafted = self._look(answer, turn, most, rows)
        computed = answer.draft_s + answer.catch_up_s - computed
        answer.looking_s += self._clock() - began - computed
        return answer.drafted

    def _look(self, answer: _Answer, turn: Turn, most: int, rows: int) -> list[Draft]:
        """Drafts that are worth verifying."""
        drafts = self._quote(answer, answer.words, turn, most) if answer.words is not None else []
        n = answer.decides.plan(drafts, rows)
        if not n and self.model is not None:
            drafts = self._compute(answer, self.model, turn, most)
            n = answer.decides.plan(drafts, rows) if drafts else 0
        return drafts[:n]

    def _quote(self, answer: _Answer, words: Words, turn: Turn, most: int) -> list[Draft]:
        """Drafts from the conversation's own words."""
        words.extend(turn.answer[answer.n_indexed :])
        answer.n_indexed = turn.n_answer
        drafts = words.propose(most)
        for n, draft in enumerate(drafts, start=1):
            if self._ends(turn, draft.token):
                return drafts[:n]
        return drafts

    def _ends(self, turn: Turn, token: int) -> bool:
        """Whether nothing can come after `token`."""
        return token in self._eog and not turn.request.ignore_eog

    def _compute(self, answer: _Answer, model: DraftModel, turn: Turn, most: int) -> list[Draft]:
        """Drafts of the draft model, as many as are worth their time."""
        drafts: list[Draft] = []
        tokens = list(turn.tokens)
        while len(drafts) < most and not model.trouble:
            lag = model.lag(turn.slot.number, tokens)
            late = 0.0
            if lag > SPOKEN and answer.followed:
                late = model.read_s * lag
            if not answer.decides.wants_more(Source.MODEL, drafts, answer.rows, late):
                break
            started = self._clock()
            draft = model.draft(turn.slot.number, tokens, answer.choose)
            took = self._clock() - started
            if lag > SPOKEN:
                model.learn_reading(lag, took)
                if answer.followed:
                    answer.catch_up_s += max(0.0, took - model.step_s)
                took = min(took, model.step_s)
            answer.followed = True
            if draft is None:
                answer.catch_up_s += took
                break
            answer.draft_s += took
            answer.n_computed += 1
            drafts.append(draft)
            tokens.append(draft.token)
            if self._ends(turn, draft.token):
                break
        return drafts

    # --- after a step

    def record(self, turn: Turn, verdict: Verdict, seconds: float | None) -> None:
        """Learn from a step of a turn.

        Args:
            turn: which has taken the verdict's tokens.
            verdict: what came of the drafts that were proposed.
            seconds: of the step; None where others or a prompt shared it.
        """
        answer = self._answers.get(turn.id)
        if answer is None:
            return
        if answer.pause:
            answer.pause -= 1
            answer.n_passed += len(verdict.tokens)
            return
        began = self._clock()
        answer.decides.record(
            Round(
                drafts=answer.drafted,
                n_accepted=verdict.n_accepted,
                n_judged=verdict.n_judged,
                tokens=verdict.tokens,
                seconds=seconds,
                draft_s=answer.draft_s,
                n_computed=answer.n_computed,
                rows=answer.rows,
                catch_up_s=answer.catch_up_s,
                looking_s=answer.looking_s + self._observing_s,
            )
        )
        answer.drafted = []
        answer.draft_s = answer.catch_up_s = self._observing_s = 0.0
        answer.n_computed = 0
        answer.looking_s = self._clock() - began
        self._recording_s += answer.looking_s

    def observe(self, width: int, seconds: float) -> None:
        """A step of `width` tokens, without a prompt in it, took `seconds`, what `record` took included."""
        recording_s, self._recording_s = self._recording_s, 0.0
        if all(answer.pause for answer in self._answers.values()):
            return
        began = self._clock()
        self.cost.observe(width, seconds - recording_s)
        self._observing_s += self._clock() - began

    def withdrawn(self, turns: Iterable[Turn]) -> None:
        """The drafts that were proposed for these are not verified after all: there is no room for them."""
        for turn in turns:
            self._answers[turn.id].drafted = []

    def evicted(self, turn: Turn, ranges: Sequence[Range]) -> None:
        """The turn's sequence lost `ranges`."""
        if self.model is not None and turn.slot.number >= 0:
            self.model.evicted(turn.slot.number, ranges)

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: let go of its words."""
        if self._library is not None:
            self._library.forget(conversation)

    def save(self) -> None:
        """Keep what was learnt for the next run."""
        if self.unsaved and self._keep is not None:
            self._keep(self._calibration)
        self.unsaved = False

    def end(self, turn: Turn) -> Speculation | None:
        """The answer has ended: what speculation did for it."""
        answer = self._answers.pop(turn.id, None)
        if answer is None:
            return None
        self.unsaved = self._keep is not None
        answer.wake()
        if answer.words is not None and self._library is not None:
            answer.words.extend(turn.answer[answer.n_indexed :])
            self._library.close(answer.words)
        self._idle.append(answer.decides)
        stats = answer.decides.stats()
        return Speculation(
            steps=stats.rounds,
            tokens=stats.tokens,
            drafted=stats.drafted,
            accepted=stats.accepted,
            tokens_per_step=stats.tokens_per_step,
            speedup=stats.speedup,
            predicted=stats.predicted,
            reason=self.model.trouble if self.model and self.model.trouble else stats.reason,
        )

    def _answer(self, turn: Turn) -> _Answer:
        answer = self._answers.get(turn.id)
        if answer is None:
            decides = self._idle.pop() if self._idle else self._make()
            decides.start()
            words = None
            if self._library is not None:
                said = [*turn.visible.transcript.tokens, *turn.answer]
                words = self._library.open(turn.request.conversation, said)
            answer = _Answer(decides, words, chooser(turn.request.sampling), turn.n_answer)
            self._answers[turn.id] = answer
        return answer


def longest_for(can: Capabilities, wanted: int) -> int:
    """Most drafts in a step of a runtime that can take back only so many tokens."""
    return wanted if can.rollback < 0 else min(wanted, can.rollback)
