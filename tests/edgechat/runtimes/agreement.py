"""When two rows of logits say the same."""

import numpy as np

from edgechat.runtimes.base import Logits

# llama.cpp has other kernels for one row, for a few and for many, which round activations to 8 bits in other
# blocks; where cells lie in the cache changes the order of sums too. For the starter model that moves the
# probabilities by 0.03 in total variation on average and by 0.08 at most (measured over 250 tokens of prose
# in parts of 1, 2, 30 and 200); a wrong context moves them by more than 0.2.
KERNELS = 0.12


def distance(one: Logits, other: Logits) -> float:
    """Total variation between the distributions of two rows, 0 to 1. # [n_vocab], [n_vocab]"""
    p = np.exp(one.astype(np.float64) - one.max())
    q = np.exp(other.astype(np.float64) - other.max())
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)


def agree(one: Logits, other: Logits) -> None:
    """The same prediction, as near as kernels for other batch sizes come. # [n_vocab] or [rows, n_vocab]"""
    assert one.shape == other.shape
    for ours, theirs in zip(np.atleast_2d(one), np.atleast_2d(other), strict=True):
        assert distance(ours, theirs) < KERNELS
