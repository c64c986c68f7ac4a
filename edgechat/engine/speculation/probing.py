"""Probes: where drafting does not pay by what is known, a draft of a model is tried now and then.

Without them what was believed once would stay believed. They come in series, each after a pause; a series
ends when it has cost more than it gained, and the pause doubles.
"""

from edgechat.engine.speculation.proposal import Source


class Probes:
    """Of one sequence, by proposer. Costs and gains are in plain steps."""

    PAUSE = 64
    """Tokens before the first probe; doubles with each series that fails."""
    LONGEST_PAUSE = 2048
    GIVE_UP = -1.2
    """A series ends when it has cost so many plain steps more than it gained."""
    SHARE = 0.01
    """A probe may take so much of the time since the one before."""

    def __init__(self) -> None:
        """Nothing is tried yet."""
        self._pause: dict[Source, int] = {}
        self._pause_now: dict[Source, int] = {}
        self._since: dict[Source, int] = {}
        self._score = 0.0

    def soon(self) -> None:
        """The kind of text has changed: what failed before may pay now."""
        self._pause.clear()
        self._pause_now.clear()

    def due(self, source: Source, loss: float) -> bool:
        """Whether to try a draft of `source`, which costs `loss` where it falls."""
        since = self._since.setdefault(source, self.PAUSE)
        pause = self._pause_now.get(source, self.PAUSE)
        return since >= pause and (pause == 0 or loss <= self.SHARE * since)

    def pass_by(self, n_tokens: int) -> None:
        """The text grew by `n_tokens`."""
        for source in self._since:
            self._since[source] += n_tokens

    def after(self, source: Source, gain: float) -> None:
        """Go on probing while it could be true that drafts pay; else the pause doubles.

        Args:
            source: whose draft was tried.
            gain: what that gained, less what it cost.
        """
        self._score += gain
        self._since[source] = 0
        if self._score > self.GIVE_UP:
            self._pause_now[source] = 0
            return
        self._score = 0.0
        pause = self._pause[source] = min(self.LONGEST_PAUSE, 2 * self._pause.get(source, self.PAUSE // 2))
        self._pause_now[source] = pause
