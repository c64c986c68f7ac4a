"""The optimal stopping rule, as arithmetic.

Unit of time: a plain step, so that plain decoding gives 1 token per unit. `losses[k - 1]` is what a round of
k drafts takes beyond a plain step: (V(k + 1) - V(1)) / V(1), and for drafts still to be computed, their time.
"""

from collections.abc import Sequence


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
