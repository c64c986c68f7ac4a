"""What drafting may cost an answer, and how fast it has been."""


def allowance(n_tokens: int) -> float:
    """Plain steps that drafting may cost an answer of so many tokens, at worst.

    It is 3% of 40 tokens, at once, for text that repeats does so from its first word, and with less a first
    draft could not always be tried: on some machines two tokens take nearly two steps. Beyond, it is less.
    """
    return 1.2 + 0.012 * max(0, n_tokens - 40)


class Speed:
    """Tokens per plain step, of the last so many of these."""

    def __init__(self, memory: int) -> None:
        """Of `memory` plain steps; nothing has come yet."""
        self._keep = 1 - 1 / memory
        self._tokens = 0.0
        self._steps = 0.0

    def add(self, tokens: float, steps: float) -> None:
        """So many tokens came in so many steps."""
        keep = self._keep**steps
        self._tokens = self._tokens * keep + tokens
        self._steps = self._steps * keep + steps

    def __call__(self) -> float:
        return self._tokens / self._steps if self._steps else 1.0
