"""What an error in what a layer adds costs, token by token.

Attention's last matrix and the MLP's add to what goes by, and whatever reads that divides it by its root
mean square first. So the same error matters less where much goes by. Some tokens, such as a text's first,
carry a thousand times as much as the others: they would be all that counts.
"""

import torch

LEAST = 1e-12
"""Mean square that is divided by."""


def residual_costs(
    hidden: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    *,
    multiplier: float = 1.0,
    eps: float = 1e-6,
) -> torch.Tensor:
    """What a square error in a matrix's outputs costs: one over the mean square of what goes by afterwards.

    What the matrix adds is not computed for that: its mean square is taken as if its inputs were independent,
    which is exact where one of them is far larger than the others.

    Args:
        hidden: float [..., D], what goes by before.
        inputs: [..., K], of the matrix.
        weight: [D, K].
        multiplier: of what is added.
        eps: of the norm that divides.

    Returns:
        [...], positive.
    """
    added = inputs.square() @ weight.square().mean(0)
    return (hidden.square().mean(-1) + multiplier**2 * added + eps).clamp_(min=LEAST).reciprocal_()
