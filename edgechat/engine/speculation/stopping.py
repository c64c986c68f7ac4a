"""The optimal stopping rule, as arithmetic.

Unit of time: a plain step, so that plain decoding gives 1 token per unit. `losses[k - 1]` is what a round of
k drafts takes beyond a plain step: (V(k + 1) - V(1)) / V(1), and for drafts still to be computed, their time.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

STAYS = 0.9
"""How likely a draft from words that was left for the next step is still proposed there: another match, a
longer one, may take its place."""


def best_length(standing: Sequence[float], losses: Sequence[float], speed: float, most: float) -> int:
    """The number k of drafts to verify: the largest sum(standing[:k]) - speed * losses[k - 1].

    Args:
        standing: P_m, the probability that drafts 1..m all stand.
        losses: of rounds of 1, 2, ... drafts; at least as many as `standing`.
        speed: tokens per unit that are known to be possible, at least 1.
        most: a round may not lose more than this.

    Returns:
        0 where no length beats a plain step.
    """
    best, best_gain, tokens = 0, 0.0, 0.0
    for k, p in enumerate(standing, start=1):
        tokens += p
        gain = tokens - speed * losses[k - 1]
        if gain > best_gain and losses[k - 1] <= most:
            best, best_gain = k, gain
    return best


def best_through(acceptance: Sequence[float], losses: Sequence[float], speed: float, most: float) -> int:
    """The number k of drafts to verify, where those that are left out can be verified in the steps to come.

    As long as drafts stand, the next step goes on with the ones after them: a plain step loses no draft, and
    makes the rest surer by one token. With W_i, in tokens, what the drafts after the first i are worth once
    those stood, the best round of k drafts there has the largest

        1 + P_1 + ... + P_k - speed * (1 + losses[k - 1]) + STAYS * P_{k+1} * W_{i+k+1},

    P_m being the probability that the next m stand, and that is W_i; found from the end (Bellman 1957). It is
    computed with all probabilities as seen from the first draft, which makes each k a multiplication.

    Args:
        acceptance: of each draft, if all before it stand.
        losses: as for `best_length`.
        speed: as for `best_length`.
        most: as for `best_length`, and for the rounds to come.

    Returns:
        0 where a plain step is best.
    """
    n = len(acceptance)
    standing = [1.0, *accumulate(acceptance, mul)]  # [n + 1]: that the first i stand
    tokens = [0.0, *accumulate(standing[1:])]  # [n + 1]: expected of the first i
    dear = [speed * loss if loss <= most else math.inf for loss in losses[:n]]
    if min(dear, default=math.inf) == math.inf:
        return 0
    gains = tokens.copy()  # [n + 1]: of rounds that end before the i-th, with what comes after them
    later = 0.0  # W_{i + 1}
    best = 0
    for i in range(n - 1, -1, -1):
        p = standing[i]
        if not p:
            continue
        rounds = [gain - p * loss for gain, loss in zip(gains[i + 1 :], dear, strict=False)]
        top = max(rounds)
        later = STAYS * acceptance[i] * later  # of a plain step, less its time
        best = 0
        if (top - tokens[i]) / p > later:
            best = 1 + rounds.index(top)
            later = (top - tokens[i]) / p
        later += 1 - speed
        if i:
            gains[i - 1] += STAYS * p * later
    return best


def worth_another(
    standing: float, typical: Sequence[float], losses: Sequence[float], loss: float, speed: float
) -> bool:
    """Whether to compute one more draft, with a view to the ones after it.

    Args:
        standing: probability that all drafts so far stand.
        typical: acceptance of the next ones, one after the other.
        losses: of rounds with one more draft, two more, ..., their computing included.
        loss: of the round as it is.
        speed: as for `best_length`.
    """
    tokens = 0.0
    for acceptance, longer in zip(typical, losses, strict=True):
        standing *= acceptance
        tokens += standing
        if tokens > speed * (longer - loss):
            return True
    return False


def break_even(losses: Sequence[float]) -> tuple[int, float]:
    """The length k that pays at the lowest acceptance, and that one: a + a^2 + ... + a^k = losses[k - 1].

    Above 1 where no length pays even if every draft stands.
    """
    return min(
        ((k, _break_even(k, loss)) for k, loss in enumerate(losses, start=1)), key=lambda pair: pair[1]
    )


def _break_even(k: int, loss: float) -> float:
    if loss > k:
        return loss / k
    low, high = 0.0, 1.0
    for _ in range(30):
        a = (low + high) / 2
        if sum(a**m for m in range(1, k + 1)) < loss:
            low = a
        else:
            high = a
    return high
