"""Which drafts stand: the output is distributed exactly as if the target model had written it alone.

The rule of Leviathan et al. 2022, "Fast Inference from Transformers via Speculative Decoding" (arXiv
2211.17192), and Chen et al. 2023 (arXiv 2302.01318). A draft x ~ q stands with probability

    min(1, p(x) / q(x))

and where it falls, the token is drawn from what p has more of than q,

    norm(max(p - q, 0))

so that P(token = x) = min(p, q)(x) + (1 - sum min(p, q)) * norm(max(p - q, 0))(x) = p(x). Drafts stand with
probability sum_x min(p, q)(x) = 1 - TV(p, q). If all stand, one more token comes from p for free.

A draft that was chosen rather than drawn has q(x) = 1, and the rule says: it stands with probability p(x).
Drawing from p and comparing does the same with one random number instead of two, the very one that plain
decoding would have used: with such drafts the text of a seed is the same with speculation and without.

p and q are what tokens are really drawn from: after temperature, top-k, top-p, min-p, penalties and grammar.
Penalties and grammar depend on the tokens before, so p comes from a callback, one position at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgechat.engine.speculation.proposal import Distribution

Ids = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round of drafting and verifying gave."""

    tokens: tuple[int, ...]
    """Never empty: the drafts that stand, then the target's own token, unless the answer has ended."""
    n_accepted: int
    """How many of the drafts are among `tokens`."""
    n_judged: int
    """Drafts whose fate was seen; those after one that fell tell nothing."""


def judge(x: int, q: Distribution, p: Distribution, random: Callable[[], float]) -> int:
    """The token at the place of a draft x ~ q: itself, or one that p has more of than q."""
    if random() * probability(q, x) < probability(p, x):
        return x
    ids, weights = residual(p, q)
    return _draw(ids, weights, random())


def probability(distribution: Distribution, token: int) -> float:
    """Probability of `token`; 0 for one that is no candidate."""
    return float(distribution.probabilities[distribution.ids == token].sum())


def draw(distribution: Distribution, uniform: float) -> int:
    """The token at `uniform` of the cumulated probabilities, in the candidates' order."""
    return _draw(distribution.ids, distribution.probabilities, uniform)


def _draw(ids: Ids, weights: Reals, uniform: float) -> int:
    cumulated = weights.cumsum()
    index = int(cumulated.searchsorted(uniform * cumulated[-1], side="right"))
    # The last candidate may have no weight, and `uniform` times the sum may round up to the sum.
    last = int(cumulated.searchsorted(cumulated[-1], side="left"))
    return int(ids[min(index, last)])


def residual(p: Distribution, q: Distribution) -> tuple[Ids, Reals]:
    """Candidates and weights (not summing to 1) of max(p - q, 0).

    Where rounding leaves nothing of it, p and q are the same but for rounding: p then.
    """
    ids, weights = p.ids, p.probabilities
    order = np.argsort(q.ids, kind="stable")
    sorted_ids = q.ids[order]
    at = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    both = sorted_ids[at] == ids
    left = np.maximum(weights - np.where(both, q.probabilities[order][at], 0.0), 0.0)
    return (ids, left) if left.sum() > 0 else (ids, weights)


def acceptance(p: Distribution, q: Distribution) -> float:
    """1 - TV(p, q): how often a draft drawn from q stands."""
    _, left = residual(p, q)
    return 1.0 - float(left.sum()) if left is not p.probabilities else 1.0
