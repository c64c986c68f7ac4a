"""A mixture of experts: each token goes through those few MLPs that its router chooses."""

import torch

from models.config import Experts
from models.linear import Linears
from models.mlp import Activation, GatedMLP


class MixtureOfExperts:
    """Top-k routing over the softmax of all experts (Qwen3-MoE)."""

    def __init__(self, act: Activation, experts: Experts, router: torch.Tensor) -> None:
        """
        Args:
            act: of each expert's gate.
            experts: how many, and how many of them for each token.
            router: [experts, D]. It stays as it is, whatever becomes of the other matrices.
        """
        self.settings = experts
        self.router = router
        self.experts = [GatedMLP(act, f"mlp.experts.{i}") for i in range(experts.count)]

    def groups(self) -> list[list[str]]:
        """Its matrices; those of a group see the same input."""
        return [group for expert in self.experts for group in expert.groups()]

    def names(self) -> list[str]:
        """Its matrices, in the order in which they multiply."""
        return [name for group in self.groups() for name in group]

    def forward(self, linears: Linears, x: torch.Tensor) -> torch.Tensor:
        """[B, S, D] to [B, S, D]. An expert that no token chose is not observed."""
        tokens = x.reshape(-1, x.shape[-1])  # [N, D]
        chosen, weights = self.route(tokens)
        result = torch.zeros_like(tokens)
        for index in chosen.unique().tolist():
            rows, place = torch.where(chosen == index)
            output = self.experts[index].forward(linears, tokens[rows])
            result.index_add_(0, rows, output * weights[rows, place, None])
        return result.reshape(x.shape)

    def route(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which experts each of [N, D] tokens goes to, and with what weight: two of [N, used]."""
        chances = torch.nn.functional.linear(tokens, self.router).softmax(dim=-1)
        weights, chosen = chances.topk(self.settings.used, dim=-1)
        if self.settings.normalized:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return chosen, weights
