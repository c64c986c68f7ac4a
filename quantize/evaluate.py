"""Perplexity from sums of log-likelihoods, and how sure it is, the way llama.cpp's perplexity tool has it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How surprised a model was by a text; adding two gives that of both."""

    nll_sum: float = 0.0
    """Sum of the tokens' negative log-likelihoods, in nats."""
    nll2_sum: float = 0.0
    """Sum of the squares of these."""
    n_tokens: int = 0

    def __add__(self, other: "Perplexity") -> "Perplexity":
        """The perplexity of both texts together."""
        return Perplexity(
            self.nll_sum + other.nll_sum, self.nll2_sum + other.nll2_sum, self.n_tokens + other.n_tokens
        )

    @property
    def value(self) -> float:
        """exp of the mean negative log-likelihood; infinite beyond what floats hold, NaN without tokens."""
        if self.n_tokens == 0:
            return math.nan
        try:
            return math.exp(self.nll_sum / self.n_tokens)
        except OverflowError:
            return math.inf

    @property
    def standard_error(self) -> float:
        """Of `value`, to first order: that of the mean, times `value`. NaN below two tokens.

        Tokens are taken as independent, which those of one window are not quite: it is a lower bound.
        """
        if self.n_tokens < 2:
            return math.nan
        mean = self.nll_sum / self.n_tokens
        variance = max(self.nll2_sum / self.n_tokens - mean * mean, 0.0)
        return math.sqrt(variance / (self.n_tokens - 1)) * self.value
