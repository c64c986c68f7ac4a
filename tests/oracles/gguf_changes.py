"""Changes to a GGUF file, one wrong thing each, and what may be said of it."""

from collections.abc import Callable

from tests.oracles.raw_gguf import File

BROKEN = frozenset({4})
UNSUPPORTED = frozenset({6})
ANY = frozenset({0, 4, 6})
"""A flipped bit may well leave a file sound, or turn a name into an unknown one."""
Change = Callable[[File], object]
Cases = dict[str, tuple[frozenset[int], Change]]
"""By name: what `edgechat models verify` may answer, and the change."""
N_TOKENS = 293
"""Of the tiny models."""


def put(key: str, kind: int, value: object) -> Change:
    """Give a key another value."""
    return lambda file: file.put(key, kind, value)
