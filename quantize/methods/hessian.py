"""What a matrix's inputs look like: the mean of x x^T, from which every method takes what it needs.

GPTQ and AWQ score errors with it; its diagonal is llama.cpp's importance matrix.
"""

import torch

PANELS = 8
"""A symmetric product needs only its upper half: panels this many compute 9/16 of it."""
MIN_PANEL = 128


class Hessian:
    """The running mean of x x^T over all inputs x, [K, K], some of which may count more than others.

    The papers' H is twice that; no result depends on a factor.
    """

    def __init__(
        self,
        columns: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        magnitudes: bool = False,
    ) -> None:
        """
        Args:
            columns: K, the matrix's inputs.
            dtype: of the sums, float32 or float64.
            device: where they are kept.
            magnitudes: keep the mean of |x| too, for AWQ.
        """
        self.count = 0
        """Inputs seen."""
        self.magnitudes = magnitudes
        self._upper = torch.zeros(columns, columns, dtype=dtype, device=device)
        self._abs_sum = torch.zeros(columns, dtype=torch.float64, device=device)

    def add(self, inputs: torch.Tensor, costs: torch.Tensor | None = None) -> None:
        """Count more inputs.

        Args:
            inputs: [..., K].
            costs: [...], not negative: what a square error made of each costs; None: all the same.
        """
        x = inputs.reshape(-1, inputs.shape[-1]).to(self._upper.dtype)  # [T, K]
        if not len(x):
            return
        if self.magnitudes:
            self._abs_sum += x.abs().sum(0)
        if costs is not None:
            x = x * costs.reshape(-1, 1).to(x.dtype).sqrt()
        total = self.count + len(x)
        keep, share = self.count / total, 1 / total
        columns = x.shape[1]
        step = _panel_columns(columns)
        for start in range(0, columns, step):
            panel = slice(start, start + step)
            self._upper[panel, start:].addmm_(x[:, panel].t(), x[:, start:], beta=keep, alpha=share)
        self.count = total

    def matrix(self) -> torch.Tensor:
        """The mean, [K, K], symmetric; of the sums' dtype. It shares their memory: add nothing afterwards."""
        step = 512
        columns = len(self._upper)
        for start in range(0, columns, step):  # panel by panel: no second matrix in memory
            stop = min(start + step, columns)
            square = self._upper[start:stop, start:stop]
            square.copy_(torch.triu(square) + torch.triu(square, 1).t())
            self._upper[stop:, start:stop] = self._upper[start:stop, stop:].t()
        return self._upper

    @property
    def mean_magnitude(self) -> torch.Tensor:
        """Mean |x| of each input, float32 [K]; where it was asked for."""
        return (self._abs_sum / max(1, self.count)).float()


def output_error(difference: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """The mean square error that a change of the weights makes in each output: diag(D H D^T).

    Args:
        difference: [N, K], new weights less old ones.
        hessian: [K, K], symmetric.

    Returns:
        [N].
    """
    columns = difference.shape[1]
    step = _panel_columns(columns)
    error = difference.new_zeros(len(difference))
    for start in range(0, columns, step):
        stop = min(start + step, columns)
        own = difference[:, start:stop]
        pull = own @ hessian[start:stop, start:stop]
        if stop < columns:
            pull.addmm_(difference[:, stop:], hessian[stop:, start:stop], alpha=2)
        error += torch.linalg.vecdot(pull, own)
    return error


def divided(hessian: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The Hessian [K, K] of inputs that are divided by scales [K]."""
    return hessian / (scales[:, None] * scales)


def _panel_columns(columns: int) -> int:
    return max(MIN_PANEL, -(-columns // PANELS))
