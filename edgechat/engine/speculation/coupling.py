"""Drafts and seeds together: the text of a seed is the same whatever was drafted.

With the rejection rule, how many random numbers a token takes depends on the drafts, and how much is
drafted depends on measured times: the same seed would give another text on the next day. Here a token is
instead the winner of a race (Gumbel 1954; "Gumbel-max"):

    argmax_x  log p(x) + g(x),    g(x) = -log(-log u(x)),   u(x) a hash of seed, position and x

which is a draw from p, and a function of the seed and p alone. The draft model races its q with the same
g(x), so that mostly the same token wins: with probability at least (1 - TV) / (1 + TV) (Daliri, Musco and
Suresh 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).
The rejection rule's 1 - TV is more, so requests without a seed use that one.
"""

import numpy as np
import numpy.typing as npt

from edgechat.engine.speculation.proposal import Distribution

_GAMMA = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def race(distribution: Distribution, seed: int, position: int) -> int:
    """The token that `seed` draws at `position` of the text, for drafting and verifying alike.

    Args:
        distribution: p or q.
        seed: of the request.
        position: counted so that it is the same when the same token is drawn again, drafted or not.
    """
    with np.errstate(divide="ignore"):
        scores = np.log(distribution.probabilities) + gumbel(distribution.ids, seed, position)
    best = int(scores.argmax())
    return int(distribution.ids[best])


def gumbel(ids: npt.NDArray[np.int64], seed: int, position: int) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, [n], one number for each of `ids` whatever the others are."""
    key = _mix(_mix((seed + _GAMMA) & _MASK) ^ (position * _GAMMA & _MASK))
    x = ids.astype(np.uint64) * np.uint64(_GAMMA) + np.uint64(key)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    uniform = ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # (0, 1), never an end
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _mix(x: int) -> int:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
