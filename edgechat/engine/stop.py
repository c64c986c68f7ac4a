"""Stop strings across token borders.

The answer ends at the stop string that is complete first; of two complete at once, at the longer one.
So the result depends on the text alone, not on how it came in pieces.
"""

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string, holding back only what could begin one."""

    __slots__ = ("_beginnings", "_held", "_longest", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for `stops`.

        Raises:
            ValueError: one of them is empty.
        """
        if not all(stops):
            raise ValueError("a stop string is empty: leave it out")
        self._stops = tuple(stops)
        self._beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._longest = max((len(stop) for stop in stops), default=0) - 1
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What of the text so far can be shown now. Sets `stopped` once a stop string is complete."""
        if not self._stops or not text:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        first: tuple[int, int] | None = None  # (end, start)
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (first is None or (start + len(stop), start) < first):
                first = (start + len(stop), start)
        if first is not None:
            self.stopped = True
            self._held = ""
            return text[: first[1]]
        shown = len(text) - self._n_held(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _n_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0
