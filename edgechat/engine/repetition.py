"""Answers that repeat themselves word for word: a model that does so for long never stops."""

from collections.abc import Sequence

LOOP_TOKENS = 256
"""What repeats itself for so long, and for half of the window, never stops."""
LONG_LOOP = 1024
"""Of an answer to which nobody set an end: what repeats itself for so long won't come to one, however large
the window is."""
LOOK_EACH = 256
"""Tokens from one look to the next."""
ROUNDS = 8
"""So often the same in what is looked at."""
ENDED = "The answer repeats itself, word for word: it was ended."


def never_stops(tokens: Sequence[int], budget: int) -> bool:
    """Whether an answer is caught in a loop.

    Args:
        tokens: what the model sees, the answer at its end.
        budget: tokens of the window.
    """
    recent = tokens[-max(LOOP_TOKENS, budget // 2) :]
    return len(recent) >= LOOP_TOKENS and _period(recent) <= len(recent) // ROUNDS


def is_caught(answer: Sequence[int], before: int) -> bool:
    """Whether an answer, which grew from `before` tokens, has said nothing new for `LONG_LOOP` of them."""
    if len(answer) < LONG_LOOP or len(answer) // LOOK_EACH == before // LOOK_EACH:
        return False
    return _period(answer[-LONG_LOOP:]) <= LONG_LOOP // ROUNDS


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
