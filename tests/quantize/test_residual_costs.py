"""What errors cost, against the norm that reads them."""

import pytest
import torch

from quantize.residual_costs import residual_costs

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("multiplier", [1.0, 0.25])
def test_errors_weigh_as_the_next_norm_makes_of_them(multiplier: float) -> None:
    """Of a token with one large input, whose output is known without the others: small changes of what the
    matrix adds, after RMSNorm."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 4, 512, generator=generator, dtype=torch.float64)
    hidden *= torch.rand(3, 4, 1, generator=generator) + 0.1
    weight = torch.randn(512, 64, generator=generator, dtype=torch.float64)
    inputs = torch.zeros(3, 4, 64, dtype=torch.float64)
    inputs[..., 5] = 40 * torch.rand(3, 4, generator=generator)
    costs = residual_costs(hidden, inputs, weight, multiplier=multiplier, eps=1e-5)
    assert costs.shape == (3, 4)
    after = hidden + multiplier * inputs @ weight.T
    change = 1e-6 * torch.randn(512, generator=generator, dtype=torch.float64)

    def read(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (512,), None, 1e-5)

    made = (read(after + change) - read(after)).square().sum(-1) / change.square().sum()
    # The norm also takes out what points along the states, one of 512 directions; chance adds the rest.
    torch.testing.assert_close(costs, made, rtol=0.2, atol=0)


def test_nothing_goes_by() -> None:
    zeros = torch.zeros(2, 3)
    costs = residual_costs(zeros, torch.zeros(2, 5), torch.ones(3, 5), eps=0.0)
    assert bool(costs.isfinite().all())
