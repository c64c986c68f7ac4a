"""V(k): seconds of one target batch of k tokens, measured.

Verifying k tokens at once is cheaper than k steps and dearer than one; how much depends on the machine, the
quantization and the kernels' block sizes. The curve is jagged: on one machine a batch of 16 takes less time
than one of 12. So it is a table, not a fit; nothing is smoothed away.

While the engine runs, every step corrects the table. A step that takes longer than expected tells either that
all steps do (the context has grown, other programs run) or that this width does, and which of the two is not
to be seen from one step. So the factors of all widths and the common one are estimated together (Kalman 1960,
on logarithms): a width that has been seen often is trusted and the surprise goes to the common factor, and
when another width is seen, what was laid on the wrong one moves over.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec
import numpy as np

WIDTHS = (1, 2, 4, 8, 5, 3, 6, 16, 12, 7, 10, 14, 9, 11, 13, 15)
"""Of batches, in the order in which they are measured: where time runs out, the later ones are missing."""


class CostTable(msgspec.Struct, frozen=True):
    """A measured table, as it is kept on disk: for one model, number of threads and kind of machine."""

    widths: tuple[int, ...]
    """Ascending, from 1."""
    seconds: tuple[float, ...]
    """Medians, [len(widths)]."""

    def __post_init__(self) -> None:
        """Refuse what no measurement gives.

        Raises:
            ValueError: no width 1, not ascending, or a time that is no time.
        """
        ascending = list(self.widths) == sorted(set(self.widths)) and self.widths[:1] == (1,)
        timed = len(self.seconds) == len(self.widths) and all(
            math.isfinite(s) and s > 0 for s in self.seconds
        )
        if not ascending or not timed:
            raise ValueError(f"not a table of costs: {self!r}")


def measure(
    run: Callable[[int], float],
    widths: Sequence[int] = WIDTHS,
    seconds: float = 0.8,
    repeats: int = 5,
) -> CostTable:
    """Measure V at `widths`, in rounds, so that a disturbance hits all of them alike.

    Args:
        run: decodes a batch of so many tokens, undoes it, and returns the seconds that decoding took.
        widths: in the order of importance, 1 first.
        seconds: no measurement begins that is expected to end after so many. Width 1 is always measured.
        repeats: most measurements of one width.
    """
    times: dict[int, list[float]] = {}
    spent = run(1)  # the first run warms caches and threads up: it counts as time only
    for _ in range(repeats):
        for width in widths:
            known = times.get(width)
            expected = known[0] if known else times[1][0] * width if times else 0.0
            if times and spent + expected > seconds:
                continue
            took = run(width)
            spent += took
            times.setdefault(width, []).append(took)
    found = sorted(times)
    return CostTable(tuple(found), tuple(median(times[width]) for width in found))


class StepCost:
    """V(k) as it is now: the measured table, and what steps have taken since."""

    _NOISE = 0.1**2
    """Variance of one step's log time."""
    _DRIFT = 0.04**2
    """By which the common factor's log changes from step to step,"""
    _SHAPE_DRIFT = 0.01**2
    """and a width's own."""
    _TABLE_ERROR = 0.25**2
    """Of a width's place in the table: machines measure badly at load."""
    _PATIENCE = (4, 128)
    """After so many steps without a plain one, one is due: at first, and when V(1) has proved true."""
    _MOST = 0.7
    """A step in which the machine was elsewhere says little: a surprise counts as twofold at most."""
    _TOGETHER = 8
    """So many steps of one width are learnt from at once: an estimate takes as long as a token's sampling."""
    _SURPRISING = 0.25
    """Unless their surprises come to so much: then at once."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        n = table.widths[-1]
        self._log_base = np.log([_interpolated(table, width) for width in range(1, n + 1)])  # [n]
        # What is estimated: the common factor's log in place 0 (it is also that of width 1), then those of
        # widths 2 .. n.
        self._state = np.zeros(n)
        self._covariance = np.diag([0.2**2, *[self._TABLE_ERROR] * (n - 1)])  # [n, n]
        self._drift = np.array([self._DRIFT, *[self._SHAPE_DRIFT] * (n - 1)])
        self._values = self._current()
        self._n_seen = 0
        self._seen_at = [0] * (n + 1)  # when each width was last observed
        self._patience = self._PATIENCE[0]
        self._unlearnt: list[float] = []  # surprises of the last steps,
        self._unlearnt_at = 0  # which all had this width, less 1

    def __call__(self, width: int) -> float:
        """Expected seconds of a batch of `width` tokens (>= 1); beyond the table in proportion."""
        values = self._values
        return values[width - 1] if width <= len(values) else values[-1] * width / len(values)

    def losses(self, n: int, rows: int = 0) -> list[float]:
        """What batches with 1 .. n drafts take beyond one without, in plain steps of one of its sequences.

        Args:
            n: most drafts.
            rows: tokens of other sequences in the same batch.
        """
        plain = rows + 1
        base = self(plain)
        return [(self(plain + k) - base) / base * plain for k in range(1, n + 1)]

    def observe(self, width: int, seconds: float) -> None:
        """Learn from a step that took `seconds`, without prompts in it."""
        if seconds <= 0:
            return
        at = min(width, len(self._values)) - 1
        if at != self._unlearnt_at:
            self._learn()
            self._unlearnt_at = at
        surprise = max(-self._MOST, min(self._MOST, math.log(seconds / self(width))))
        self._unlearnt.append(surprise)
        together = abs(sum(self._unlearnt)) < self._SURPRISING
        if not together or len(self._unlearnt) >= min(self._TOGETHER, 1 + self._n_seen // 8):
            self._learn()
        self._n_seen += 1
        self._seen_at[at + 1] = self._n_seen
        if at == 0:
            low, high = self._PATIENCE
            self._patience = low if abs(surprise) > 0.2 else min(high, 2 * self._patience)

    def _learn(self) -> None:
        """Correct the estimates by the mean of what was seen, which has so much less noise."""
        n, at = len(self._unlearnt), self._unlearnt_at
        if not n:
            return
        surprise = sum(self._unlearnt) / n
        self._unlearnt.clear()
        covariance = self._covariance
        covariance.flat[:: len(covariance) + 1] += n * self._drift  # its diagonal
        seen = covariance[0] + covariance[at] if at else covariance[0]  # [n]: with the observed log time
        variance = (seen[0] + seen[at] if at else seen[0]) + self._NOISE / n
        gain = seen / variance
        self._state = self._state + gain * surprise
        self._covariance = covariance - gain[:, None] * seen
        self._values = self._current()

    def plain_due(self, width: int = 1) -> bool:
        """Whether a step without drafts, of `width` tokens, should be made to see what it takes by now.

        When nothing but long batches is seen, a change of the machine and an error of the table look alike.
        """
        seen = max(self._seen_at[1 : min(width, len(self._values)) + 1])
        return self._n_seen - seen >= self._patience

    def _current(self) -> list[float]:
        logs = self._log_base + self._state
        logs[1:] += self._state[0]
        values: list[float] = np.exp(logs).tolist()
        return values


def ceiling(cost: Mapping[int, float] | StepCost, longest: int) -> float:
    """The speed-up if every draft of the best length stood and drafting took no time: max k V(1) / V(k)."""
    seconds = cost if callable(cost) else cost.__getitem__
    return max((k + 1) * seconds(1) / seconds(k + 1) for k in range(longest + 1))


def _interpolated(table: CostTable, width: int) -> float:
    """V at a width that may not have been measured."""
    known = dict(zip(table.widths, table.seconds, strict=True))
    if width in known:
        return known[width]
    below = max(w for w in table.widths if w < width)
    above = min(w for w in table.widths if w > width)
    return known[below] + (known[above] - known[below]) * (width - below) / (above - below)
