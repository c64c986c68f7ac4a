"""How many tokens to draft and verify in each step, or none: speculation that never costs.

A round verifies k drafts in a batch of k + 1 tokens. With P_m the probability that drafts 1..m all stand, it
gives 1 + P_1 + ... + P_k tokens and takes V(k + 1) seconds and the drafting. The rule that gives most tokens
per second in the long run (a renewal-reward problem) takes, with R the best rate known to be possible, the
k with the largest

    P_1 + ... + P_k  -  R * (V(k + 1) - V(1))

so draft i + 1 is verified iff P_{i+1} + ... + P_j > R * (V(j + 1) - V(i + 1)) for some j > i: one looks ahead
because V is jagged. A draft that first takes d seconds is computed iff, with the typical acceptance a,
P_i * (a + ... + a^{j-i}) > R * ((j - i) * d + V(j + 1) - V(i + 1)) for some j. Other speculators stop by a
fixed length or a fixed confidence, and so lose time where verifying is dear. Drafts that cost nothing, from
words, are still there after a step without them, so there the rule looks on to the rounds to come: it may
wait until a match has grown, and for a long batch that is cheap (`stopping.best_through`).

Three things keep it honest. *Credit*: whatever the estimates say, a round runs only if its worst outcome, no
draft standing, is covered by what speculation has gained before and what the answer may lose (`allowance`):
at most 3% from its 40th token on, as far as V is known; what a width's first batch takes beyond its place in
the table comes on top. Looking for drafts and deciding take time too, on a small model a part of a step that
counts: it is paid for alike, and where credit has run out nobody looks until there is some again. While a
second miss is not covered either, drafts from words must first have come true unverified. *Probes*: where the
rule says no, chosen drafts (n-grams) are compared with the text as it comes, for nothing, and a model's
drafts are tried after pauses that double. *Measured times*: V and d are corrected by each step.

All times here are in plain steps of the batch at hand, so the rule holds beside other sequences too: there a
longer batch makes all of them wait.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from operator import mul

from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.cost import StepCost
from edgechat.engine.speculation.leaning import Leaning
from edgechat.engine.speculation.ledger import Speed, allowance
from edgechat.engine.speculation.probing import Probes
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round, SpeculationStats
from edgechat.engine.speculation.stopping import best_length, best_through, break_even, worth_another

_UNLIKELY = 0.01
"""Drafts that stand less often than this are not looked at."""


class _Why(StrEnum):
    """Why there was no draft in the last step."""

    NOTHING = "nothing to draft: no words repeat here"
    RESTING = "pausing: looking for drafts took more time than they saved"
    BROKE = "pausing: the last drafts took more time than they saved"
    LATER = "waiting: the draft grows surer with each word that comes as it says"
    UNPROVEN = "waiting: the last words did not come as drafted"
    DEAR = "drafting would cost more time than it saves"


@dataclass(frozen=True, slots=True)
class _Declined:
    """Drafts that were not computed, or not verified."""

    source: Source
    rows: int
    """Tokens of other sequences in the batch."""
    acceptance: tuple[float, ...]
    """How likely each stood, if all before it did; () where there was no credit to look."""
    speed: float
    """Tokens per plain step that they had to beat."""
    losses: Sequence[float]
    """What rounds of 1, 2, ... of them would have taken beyond a plain step."""

    @property
    def why(self) -> _Why:
        """For want of credit, or as they would not pay."""
        acceptance, losses = self.acceptance, self.losses
        if acceptance:
            broke = _best(self.source, acceptance, losses, self.speed, math.inf) > 0
        else:
            broke = break_even(losses)[1] <= 1
        if broke:
            return _Why.BROKE
        standing = list(accumulate(acceptance, mul))
        return _Why.LATER if best_length(standing, losses, self.speed, math.inf) else _Why.DEAR


class Controller:
    """Decides for one sequence. `StepCost` and `Calibration` are shared with the others."""

    LIGHT = 0.012
    """A look for drafts that takes so few plain steps is always taken: unverified drafts teach as well."""
    MOST = 24.0
    """Gains beyond this can't be lost again."""
    LOOKS = 8
    """Drafts are looked for again when there is credit to do so that often, and to verify one."""
    LONGEST_PAUSE = 32
    """Steps."""
    PROVEN = 2
    """Where credit covers no second miss, as many drafts must have come true before any is verified."""
    OF_LATE = 128
    """Plain steps whose speed is known to be possible,"""
    TOLD = 1024
    """and those of which the speed-up is told: all but the longest answers' whole."""

    def __init__(
        self,
        cost: StepCost,
        calibration: Calibration,
        longest: int = 15,
        draft_s: Mapping[Source, float] | None = None,
    ) -> None:
        """Decide with what is known of times and acceptance.

        Args:
            cost: V. Whoever runs the steps tells it of them, once a step; this class only asks.
            calibration: told here how drafts fared.
            longest: most drafts in a round.
            draft_s: seconds that one draft takes, by proposer, as measured at load; unknown ones are learnt.
        """
        self.cost = cost
        self.calibration = calibration
        self.longest = longest
        self._draft_s: dict[Source, float] = dict(draft_s or {})
        self._probes = Probes()
        self._look = 0.0  # plain steps that looking for drafts takes, of late
        self.start()

    def start(self) -> None:
        """A new answer begins. What was learnt stays, less firmly; gains can't be lost on another text."""
        self.credit = allowance(0)
        self.calibration.begin()
        self._leaning = Leaning()
        self._modelled = Speed(self.OF_LATE)
        self._measured, self._predicted = Speed(self.TOLD), Speed(self.TOLD)
        self._rounds = self._tokens = self._drafted = self._accepted = 0
        self._offered: Sequence[Draft] = ()
        self._expected = 1.0
        self._probing = self._probed = False
        self._resting = False
        self._came_true = 0  # drafts from words on end, verified or not
        self._why: _Why | _Declined | None = None

    def hint(self) -> None:
        """The kind of text has changed (a code block opens, a quote): probe soon."""
        self._probes.soon()

    # --- before a step

    def pause(self, rows: int = 0) -> int:
        """Steps to make before drafts are looked for again; 0: now.

        There is a pause where credit doesn't cover a look and verifying a single draft. Who makes these steps
        says so by `passed`, or records them one by one.

        Args:
            rows: tokens of other sequences in the same batch.
        """
        missing = 0.0
        if self._look > self.LIGHT:
            n_looks = self.LOOKS if self._resting else 1
            missing = n_looks * self._look + self.cost.losses(1, rows)[0] - self.credit
        self._resting = missing > 0
        if not self._resting:
            return 0
        self._expected, self._why = 1.0, _Why.RESTING
        n_steps = 1
        while n_steps < self.LONGEST_PAUSE and self._earned(n_steps) < missing:
            n_steps *= 2
        return n_steps

    def passed(self, n_steps: int) -> None:
        """So many plain steps were made without a look for drafts, a token each."""
        self.credit = min(self.MOST, self.credit + self._earned(n_steps))
        self._probes.pass_by(n_steps)
        for speed in (self._modelled, self._measured, self._predicted):
            speed.add(n_steps, n_steps)
        self._rounds += n_steps
        self._tokens += n_steps

    def _earned(self, n_tokens: int) -> float:
        """Credit that so many more tokens bring."""
        return allowance(self._tokens + n_tokens) - allowance(self._tokens)

    def plan(self, drafts: Sequence[Draft], rows: int = 0) -> int:
        """How many of `drafts` to verify; 0 for a plain step.

        Args:
            drafts: what is proposed. If they had to be computed, that time is spent.
            rows: tokens of other sequences in the same batch.
        """
        drafts = drafts[: self.longest]
        self._offered, self._expected = drafts, 1.0
        probing, self._probing, self._probed = self._probing, False, False
        if not drafts:
            if self._why in (None, _Why.RESTING):
                self._why = _Why.NOTHING
            return 0
        source = drafts[0].source
        acceptance = self._acceptance(drafts)
        losses = self.cost.losses(len(acceptance), rows)
        spent = self._draft_time(source, rows) * len(drafts)
        speed = max(1.0, self._modelled())
        k = _best(source, acceptance, losses, speed, self.credit - spent)
        if self.cost.plain_due(rows + 1):
            k = 0
        elif k and not source.computed and self._came_true < self.PROVEN and self.credit < 2 * losses[0]:
            k, self._why = 0, _Why.UNPROVEN
        elif not k and probing:
            k, self._probed = 1, True
        elif not k:
            self._why = _Declined(source, rows, tuple(acceptance), speed, losses)
        if k:
            self._why = None
        self._expected = 1 + sum(accumulate(acceptance[:k], mul))
        return k

    def wants_more(
        self, source: Source, drafts: Sequence[Draft], rows: int = 0, catch_up_s: float = 0.0
    ) -> bool:
        """Whether `source`, whose drafts must be computed, should compute one more after `drafts`.

        Args:
            source: who would draft.
            drafts: what it has drafted for this step.
            rows: tokens of other sequences in the same batch.
            catch_up_s: what the next draft takes beyond the usual, to read what it has not seen.
        """
        n = len(drafts)
        if n >= self.longest or self.cost.plain_due(rows + 1):
            return False
        each = self._draft_time(source, rows)
        late = catch_up_s / self._plain_s(rows)
        losses = [
            loss + late + each * k for k, loss in enumerate(self.cost.losses(self.longest, rows), start=1)
        ]
        speed = max(1.0, self._modelled())
        typical: list[float] = []
        if losses[n] <= self.credit:
            standing = 1.0
            for place, draft in enumerate(drafts):
                standing *= self.calibration.acceptance(draft, place)
            typical = self.calibration.typical(source, range(n, self.longest))
            loss = losses[n - 1] if n else 0.0
            if worth_another(standing, typical, losses[n:], loss, speed):
                return True
            can_pay = any(loss < k for k, loss in enumerate(losses, start=1))  # if every draft stood
            if n == 0 and can_pay and self._probes.due(source, losses[0]):
                self._probing = True
                self.calibration.soften(source)
                return True
        if n == 0:
            self._why = _Declined(source, rows, tuple(typical), speed, losses)
        return False

    def _acceptance(self, drafts: Sequence[Draft]) -> list[float]:
        """How likely each draft stands if all before it do, up to where that is too unlikely to look on."""
        found: list[float] = []
        usual: dict[float, float] = {}  # of drafts from words, whose place tells nothing
        computed = drafts[0].source.computed
        standing = 1.0
        for place, draft in enumerate(drafts):
            known = None if computed else usual.get(draft.confidence)
            if known is None:
                known = usual[draft.confidence] = self.calibration.acceptance(draft, place)
            found.append(self._leaning.acceptance(draft, known))
            standing *= found[-1]
            if standing < _UNLIKELY:
                break
        return found

    # --- after a step

    def record(self, round_: Round) -> None:
        """Learn from a step."""
        drafts, rows = round_.drafts, round_.rows
        n_tokens, n_drafts = len(round_.tokens), len(drafts)
        self._learn(round_)
        plain_s = self._plain_s(rows)
        looking = round_.looking_s / plain_s
        if not self._resting:
            self._look += (min(looking, 1.0) - self._look) / 16
        on_top = (round_.draft_s + round_.catch_up_s) / plain_s + looking
        steps = 1 + on_top + (self.cost.losses(n_drafts, rows)[-1] if n_drafts else 0.0)
        measured = steps if round_.seconds is None else round_.seconds / plain_s + on_top
        self.credit = min(self.MOST, self.credit + n_tokens - steps + self._earned(n_tokens))
        self._modelled.add(n_tokens, steps)
        self._measured.add(n_tokens, measured)
        self._predicted.add(self._expected, steps)
        self._rounds += 1
        self._tokens += n_tokens
        self._drafted += n_drafts
        self._accepted += round_.n_accepted

    def stats(self) -> SpeculationStats:
        """Of the answer that is being written."""
        return SpeculationStats(
            self._rounds,
            self._tokens,
            self._drafted,
            self._accepted,
            self._measured(),
            self._predicted(),
            self._reason(),
        )

    # --- learning

    def _learn(self, round_: Round) -> None:
        drafts, tokens = round_.drafts, round_.tokens
        self._probes.pass_by(len(tokens))
        if round_.n_computed:
            source = self._offered[0].source if self._offered else Source.MODEL
            self._learn_draft_time(source, round_.draft_s / round_.n_computed)
        if drafts and self._probed:
            source = drafts[0].source
            loss = self.cost.losses(1, round_.rows)[0] + self._draft_time(source, round_.rows)
            self._probes.after(source, round_.n_accepted - loss)
        self._compare(round_)
        self._offered = ()

    def _compare(self, round_: Round) -> None:
        """Learn what became of the drafts, and of the one after them, which was not verified: for nothing.

        If that one was drawn, it stands more often than it is equal, and tells nothing.
        """
        drafts, n_stood, n_judged = round_.drafts, round_.n_accepted, round_.n_judged
        n = len(drafts)
        if n_stood == n < min(len(self._offered), len(round_.tokens)) and self._offered[n].drawn_from is None:
            drafts, n_judged = self._offered, n + 1
            n_stood += self._offered[n].token == round_.tokens[n]
        if drafts and not drafts[0].source.computed:
            self._came_true = self._came_true + n_stood if n_stood == n_judged else 0
        for place, draft in enumerate(drafts[:n_judged]):
            self._leaning.learn(draft, self.calibration.acceptance(draft, place), place < n_stood)
        self.calibration.learn(drafts, n_stood, n_judged)

    def _learn_draft_time(self, source: Source, seconds: float) -> None:
        known = self._draft_s.get(source)
        self._draft_s[source] = seconds if known is None else known + 0.1 * (min(seconds, 3 * known) - known)

    # --- times, in plain steps of the batch at hand

    def _draft_time(self, source: Source, rows: int) -> float:
        return self._draft_s.get(source, 0.0) / self._plain_s(rows)

    def _plain_s(self, rows: int) -> float:
        """Seconds of a plain step of this sequence, `rows` others beside it."""
        return self.cost(rows + 1) / (rows + 1)

    # --- why not

    def _reason(self) -> str:
        """Why drafting does not pay now, with the numbers."""
        declined = self._why
        why = declined.why if isinstance(declined, _Declined) else declined
        if why is not _Why.DEAR or not isinstance(declined, _Declined):
            return why.value if why else ""
        rows = declined.rows
        each = self._draft_time(declined.source, rows)
        losses = [loss + each * k for k, loss in enumerate(self.cost.losses(self.longest, rows), start=1)]
        k, needed = break_even(losses)
        if needed > 1:
            return (
                f"drafting can't pay here: {_tokens(k)} would take {1 + losses[k - 1]:.1f} times a plain "
                f"step, for {k + 1} tokens at best"
            )
        n = max(1, len(declined.acceptance))
        k, needed = break_even(losses[:n])
        standing = accumulate(declined.acceptance[:k], mul)
        stood = min((p ** (1 / m) for m, p in enumerate(standing, start=1)), default=0.0)
        if needed > 1:
            return f"{_tokens(n)} to draft here: too few to pay"
        if stood >= needed:  # they would pay beside plain steps
            return f"drafting {_tokens(k)} here would gain less than drafts did of late"
        return (
            f"drafting {_tokens(k)} would need {math.ceil(100 * needed)}% accepted, "
            f"of such drafts {math.floor(100 * stood)}% were"
        )


def _best(
    source: Source, acceptance: Sequence[float], losses: Sequence[float], speed: float, most: float
) -> int:
    """How many drafts to verify."""
    if source.computed:
        return best_length(list(accumulate(acceptance, mul)), losses, speed, most)
    return best_through(acceptance, losses, speed, most)


def _tokens(n: int) -> str:
    return f"{n} token" if n == 1 else f"{n} tokens"
