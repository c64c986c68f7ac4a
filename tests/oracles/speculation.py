"""Independent answers for the tests of speculation: statistics, a slow n-gram search, a slow best length."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence


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
