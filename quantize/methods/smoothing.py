"""SmoothQuant's idea (Xiao et al. 2023): inputs are divided by scales and the weights that read them are
multiplied, so that outliers of activations, which are rounded token by token, become outliers of weights, or
the other way round. Which scales are best is not guessed from two maxima here but solved for.

With scales s, the steps of token t and of output n are max_k |x_tk| / s_k and max_k |w_nk| s_k over 127. A
rounding error is a twelfth of its step's square, and it is multiplied with the other factor of the product,
so the outputs' mean square error is in proportion to

    A B + g C X,   A = mean_t max_k x_tk^2 / s_k^2,   B = sum_nk w_nk^2 s_k^2,
                   C = sum_n max_k w_nk^2 s_k^2,      X = sum_k mean_t x_tk^2 / s_k^2,

where g is the share of the weights' error that GPTQ leaves. Each of the four is log-convex in log s, and so
is the whole: there is one best place, where for each input what would become larger with its scale equals
what would become smaller. The scales are moved toward that balance.
"""

from collections.abc import Sequence

import torch

from quantize.methods.sampling import TOKENS, spread

ROWS = 1024
"""Outputs that scales are found from."""
STEPS = 40
RATE = 0.3
"""Of a step, toward balance in all inputs at once."""
GPTQ_LEAVES = 0.3
"""Of the square error of rounding weights to the nearest."""


def balanced(weights: Sequence[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """The scales for matrices that see the same input.

    Args:
        weights: [N_i, K] each.
        tokens: a sample of the input, [T, K].

    Returns:
        float32 [K], over 0, with a geometric mean of 1: what the inputs are divided by and the weights'
        columns multiplied with. An input that is always 0, or that nothing reads, keeps 1.
    """
    n_rows = sum(len(weight) for weight in weights)
    rows = [spread(weight, max(1, ROWS * len(weight) // n_rows)) for weight in weights]
    x, w = spread(tokens.float(), TOKENS).square(), torch.cat(rows).float().square()
    used = (x.amax(0) > 0) & (w.amax(0) > 0)
    if not bool(used.any()):
        return torch.ones(len(used), device=x.device)
    x, w = x[:, used], w[:, used]
    importance = _importance(x)[:, None]
    reads, size = w.sum(0), (importance * x).mean(0)
    logs = 0.5 * (x.amax(0) / w.amax(0)).log()  # of s^2: SmoothQuant's own choice
    best, least = logs, torch.inf
    for _ in range(STEPS):
        squares = logs.exp()
        a, top_inputs = _shared_maximum(x / squares, importance / len(x))
        c, top_weights = _shared_maximum(w * squares, torch.ones_like(w[:, :1]))
        up, down = reads * squares, size / squares
        rounded_inputs, rounded_weights = a * up.sum(), GPTQ_LEAVES * c * down.sum()
        error = float(rounded_inputs + rounded_weights)
        if error < least:
            best, least = logs, error
        larger = rounded_inputs * up / up.sum() + rounded_weights * top_weights
        smaller = rounded_inputs * top_inputs + rounded_weights * down / down.sum()
        logs = logs + RATE * (smaller / larger).clamp(1e-3, 1e3).log()
    scales = torch.ones(len(used), device=x.device)
    scales[used] = ((best - best.mean()) / 2).exp().clamp(1e-4, 1e4)
    return scales


def _importance(squares: torch.Tensor) -> torch.Tensor:
    """Of each token [T], by its inputs' squares [T, K]: one that is larger than most (attention sinks are by
    a factor of thousands) counts no more than the median, because the norms after it divide by its size."""
    sizes = squares.sum(1)
    median = sizes.median().clamp(min=torch.finfo(sizes.dtype).tiny)
    return median / sizes.maximum(median)


def _shared_maximum(values: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted sum of each row's maximum, and the columns' shares in it: by the fourth power of their
    values, since else the one that is largest changes with each step.

    Args:
        values: [R, K], none below 0.
        importance: [R, 1].
    """
    largest = values.amax(1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    powers = (values / largest).square_().square_()
    weighted = importance * largest
    whole = weighted.sum()
    return whole, ((weighted / powers.sum(1, keepdim=True)).t() @ powers)[0] / whole
