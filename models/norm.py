"""RMSNorm (Zhang and Sennrich 2019), and Gemma's."""

import torch


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float, *, adds_one: bool = False) -> None:
        """
        Args:
            weight: [size], as the checkpoint has it.
            eps: added to the mean.
            adds_one: the weight is stored less one (Gemma).
        """
        self.weight = weight
        self.eps = eps
        self.adds_one = adds_one

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Norm [..., size]."""
        weight = self.weight + 1 if self.adds_one else self.weight
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps)
