"""Independent answers for the tests of speculation: statistics, a slow search, a simulated machine."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgechat.engine.speculation.accept import Verdict, draw, judge
from edgechat.engine.speculation.controller import Controller
from edgechat.engine.speculation.proposal import Distribution, Draft, Source
from edgechat.engine.speculation.round import Round


@dataclass(frozen=True)
class Sparse:
    """A distribution as the sampler gives it."""

    ids: np.ndarray
    probabilities: np.ndarray

    def as_dict(self) -> dict[int, float]:
        """Probability by token."""
        return dict(zip(self.ids.tolist(), self.probabilities.tolist(), strict=True))


Target = Callable[[int, Sequence[int]], Distribution]
"""p at position i of the round, after the tokens that were accepted there so far."""


def never(token: int) -> bool:
    """No token ends the answer."""
    return False


def verify(
    drafts: Sequence[Draft],
    target: Target,
    random: Callable[[], float],
    ends: Callable[[int], bool] = never,
) -> Verdict:
    """Judge `drafts` one after the other, up to the first that falls or ends the answer.

    Args:
        drafts: in order; may be empty, which is plain decoding.
        target: called for positions 0, 1, ..., as far as needed: at most len(drafts) + 1 times.
        random: uniform in [0, 1). A chosen draft, and the last token, take one number; a drawn draft takes
            one, and another where it falls.
        ends: whether a token ends the answer (end of turn, stop string): nothing comes after it.
    """
    tokens: list[int] = []
    for i, draft in enumerate(drafts):
        p, q = target(i, tokens), draft.drawn_from
        token = draw(p, random()) if q is None else judge(draft.token, q, p, random)
        tokens.append(token)
        if token != draft.token:
            return Verdict(tuple(tokens), i, i + 1)
        if ends(token):
            return Verdict(tuple(tokens), i + 1, i + 1)
    tokens.append(draw(target(len(drafts), tokens), random()))
    return Verdict(tuple(tokens), len(drafts), len(drafts))


def judge_greedily(
    drafts: Sequence[int], likeliest: Sequence[int], ends: Callable[[int], bool] = lambda token: False
) -> Verdict:
    """What stands at temperature 0 and without penalties.

    Args:
        drafts: the drafted tokens.
        likeliest: the target's likeliest token at each position, one more than drafts.
        ends: whether a token ends the answer.
    """
    for i, draft in enumerate(drafts):
        token = likeliest[i]
        if draft != token or ends(token):
            return Verdict(tuple(likeliest[: i + 1]), i + (draft == token), i + 1)
    return Verdict(tuple(likeliest[: len(drafts) + 1]), len(drafts), len(drafts))


def chi_squared_p(observed: Mapping[object, int], expected: Mapping[object, float]) -> float:
    """Probability of counts at least so far from `expected` (probabilities), by Pearson's test.

    Cells with fewer than five expected counts are merged.
    """
    n = sum(observed.values())
    assert set(observed) <= {cell for cell, p in expected.items() if p > 0}, "a count where none can be"
    statistic, cells = 0.0, 0
    rare_observed, rare_expected = 0.0, 0.0
    for cell, p in expected.items():
        if p * n < 5:
            rare_observed += observed.get(cell, 0)
            rare_expected += p * n
        else:
            statistic += (observed.get(cell, 0) - p * n) ** 2 / (p * n)
            cells += 1
    if rare_expected > 0:
        statistic += (rare_observed - rare_expected) ** 2 / rare_expected
        cells += 1
    return chi_squared_survival(statistic, cells - 1)


def chi_squared_survival(x: float, degrees: int) -> float:
    """P(X >= x) for a chi-squared variable: the closed sums for even and odd degrees of freedom."""
    if x <= 0:
        return 1.0
    if degrees % 2 == 0:
        term = total = math.exp(-x / 2)
        for i in range(1, degrees // 2):
            term *= x / 2 / i
            total += term
        return total
    total = math.erfc(math.sqrt(x / 2))
    term = math.sqrt(2 * x / math.pi) * math.exp(-x / 2)
    for i in range(1, (degrees + 1) // 2):
        total += term
        term *= x / (2 * i + 1)
    return total


def count(outcomes: Sequence[object]) -> Counter[object]:
    """How often each came."""
    return Counter(outcomes)


def continuation(tokens: Sequence[int], orders: Sequence[int], n: int) -> tuple[list[int], int]:
    """What followed the most recent earlier occurrence of the last tokens, by scanning all of them.

    Args:
        tokens: the text; -1 is a border that nothing reaches across.
        orders: lengths of context, tried from the longest.
        n: tokens wanted. Where the text's end is reached, the continuation goes on with itself.

    Returns:
        The tokens, and the order that matched (0: none).
    """
    length = len(tokens)
    for order in sorted(orders, reverse=True):
        context = list(tokens[length - order :])
        if order > length or -1 in context:
            continue
        for stop in range(length - 1, order - 1, -1):
            if list(tokens[stop - order : stop]) == context:
                longer = list(tokens)
                for i in range(n):
                    longer.append(longer[stop + i])
                found = longer[length:]
                return (found[: found.index(-1)] if -1 in found else found), order
    return [], 0


# --- a simulated machine and texts, for the controller

# Measured on two AVX2 cores: seconds of a batch of k tokens over those of one, Q4_K_M.
V_1_5B = {1: 1.0, 2: 1.38, 3: 1.91, 4: 2.38, 5: 2.55, 6: 3.64, 8: 4.77, 12: 6.71, 16: 6.42}
V_0_5B = {1: 1.0, 2: 1.60, 3: 2.11, 4: 2.33, 5: 3.05, 6: 2.83, 8: 3.64, 12: 5.16, 16: 6.43}


def filled(table: Mapping[int, float]) -> list[float]:
    """V at 0 (unused), 1, 2, ...: straight lines between what was measured."""
    known = sorted(table)
    values = [0.0]
    for k in range(1, known[-1] + 1):
        below = max(w for w in known if w <= k)
        above = min(w for w in known if w >= k)
        share = (k - below) / (above - below) if above > below else 0.0
        values.append(table[below] * (1 - share) + table[above] * share)
    return values


def fixed_speedup(v: Sequence[float], acceptance: Sequence[float], k: int, d: float, offered: float) -> float:
    """Tokens per plain step when k drafts are verified whenever there are some.

    Args:
        v: V over V(1).
        acceptance: of drafts 1, 2, ..., the ones before them standing.
        k: drafts.
        d: time of one draft.
        offered: share of the steps in which there are drafts.
    """
    standing, tokens = 1.0, 1.0
    for a in acceptance[:k]:
        standing *= a
        tokens += standing
    time = v[k + 1] / v[1] + k * d
    return (offered * tokens + (1 - offered)) / (offered * time + (1 - offered))


def best_fixed(
    v: Sequence[float], acceptance: Sequence[float], d: float = 0.0, offered: float = 1.0
) -> tuple[int, float]:
    """The best fixed length, 0 included, and its speed-up."""
    return max(
        ((k, fixed_speedup(v, acceptance, k, d, offered)) for k in range(len(v) - 1)), key=lambda x: x[1]
    )


@dataclass(frozen=True)
class Simulated:
    """What a simulated answer gave."""

    speedup: float
    """Tokens per plain step."""
    tokens: int
    lengths: Counter[int]
    """How often so many drafts were verified."""
    predicted: float
    """The speed-up that was expected, on average over the answer."""


def simulate(
    controller: Controller,
    v: Sequence[float],
    stands: Callable[[int, int, int], bool],
    *,
    n: int = 3000,
    source: Source = Source.NGRAM,
    d: float = 0.0,
    offers: Callable[[int], int] = lambda position: 15,
    confidence: float = 0.6,
    drawn: bool = False,
    noise: float = 0.03,
    slower: Callable[[int], float] = lambda position: 1.0,
    seed: int = 0,
    looking: float = 0.0,
) -> Simulated:
    """Run a controller on a machine whose plain step takes 50 ms.

    Args:
        controller: told of all costs, as the engine would.
        v: true V over V(1), by width.
        stands: (position, place in the draft, number of drafts verified) -> whether that draft is right; for
            0 verified, whether it would have been.
        n: tokens of the answer.
        source: who proposes; a MODEL takes `d` plain steps for each draft.
        d: see `source`.
        offers: drafts that there are at a position, for other sources.
        confidence: of every draft.
        drawn: drafts were drawn, and can't be compared with the text.
        noise: standard deviation of the log of a step's time.
        slower: factor on all times at a position.
        seed: of the noise.
        looking: plain steps that looking for drafts takes, whatever comes of it.
    """
    rng = random.Random(seed)
    plain_s = 0.05
    position, steps, lengths = 0, 0.0, Counter[int]()
    predictions: list[float] = []
    q = Sparse(np.array([0]), np.ones(1)) if drawn else None
    controller.start()
    while position < n:
        drafts: list[Draft] = []
        draft_s = 0.0
        factor = slower(position)
        if n_steps := controller.pause():
            controller.passed(n_steps)
            lengths[0] += n_steps
            position += n_steps
            steps += n_steps
            continue
        looking_s = looking * plain_s
        if source is Source.MODEL:
            while controller.wants_more(source, drafts):
                drafts.append(Draft(position + len(drafts), source, confidence, q))
                draft_s += d * plain_s * factor
        else:
            drafts = [Draft(position + i, source, confidence, q) for i in range(offers(position))]
        k = controller.plan(drafts)
        lengths[k] += 1
        accepted = 0
        while accepted < k and stands(position, accepted, k):
            accepted += 1
        tokens = [position + i for i in range(accepted + 1)]
        # The target's own token: what the next draft would have been, or something else.
        if accepted < len(drafts) and (accepted < k or not stands(position, accepted, 0)):
            tokens[-1] = -1
        seconds = v[k + 1] * plain_s * factor * math.exp(rng.gauss(0, noise))
        controller.cost.observe(k + 1, seconds)
        controller.record(
            Round(
                drafts[:k], accepted, min(k, accepted + 1), tokens, seconds, draft_s,
                len(drafts) if draft_s else 0, looking_s=looking_s,
            )
        )  # fmt: skip
        position += len(tokens)
        took = (seconds + draft_s + looking_s) / plain_s / factor
        steps += took
        if position // 250 > (position - len(tokens)) // 250:
            predictions.append(controller.stats().predicted)
    predictions = predictions or [controller.stats().predicted]
    return Simulated(position / steps, position, lengths, sum(predictions) / len(predictions))
