"""Answers that repeat themselves word for word: a model that does so for long never stops."""

from collections.abc import Sequence

LOOP_TOKENS = 256
"""What repeats itself for so long, and for half of the window, never stops."""
ROUNDS = 8
"""So often the same in what is looked at."""


def never_stops(tokens: Sequence[int], budget: int) -> bool:
    """Whether an answer is caught in a loop.

    Args:
        tokens: what the model sees, the answer at its end.
        budget: tokens of the window.
    """
    recent = tokens[-max(LOOP_TOKENS, budget // 2) :]
    return len(recent) >= LOOP_TOKENS and _period(recent) <= len(recent) // ROUNDS


def _period(tokens: Sequence[int]) -> int:
    """The shortest distance at which all of `tokens` repeat themselves; their number where they don't."""
    # Of each beginning, the longest proper end that is its beginning too (Knuth, Morris, Pratt).
    borders = [0]
    for token in tokens[1:]:
        border = borders[-1]
        while border and tokens[border] != token:
            border = borders[border - 1]
        borders.append(border + (tokens[border] == token))
    return len(tokens) - borders[-1]
