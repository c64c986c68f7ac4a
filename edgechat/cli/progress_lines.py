"""How far something long is, for a log: where stderr is no terminal."""

import time

from edgechat.cli.output import note


class ProgressLines:
    """A line each tenth of the way, none sooner than ten seconds after the one before."""

    EVERY_S = 10.0

    def __init__(self, what: str) -> None:
        """`what` is going on."""
        self._what = what
        self._next_time = time.monotonic() + self.EVERY_S
        self._next_share = 0.1

    def __call__(self, share: float, more: str = "") -> None:
        """Tell how far it is.

        Args:
            share: of the whole, 0 to 1. Nothing is said of the end: a result comes then.
            more: what there is to say beside it.
        """
        now = time.monotonic()
        if self._next_share <= share < 1 and now >= self._next_time:
            self._next_time = now + self.EVERY_S
            self._next_share = (int(share * 10 + 1e-9) + 1) / 10
            note(f"{self._what}: {100 * share:.0f}%{more and ', ' + more}")
