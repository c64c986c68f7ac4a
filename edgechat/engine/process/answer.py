"""One answer as it streams in."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from edgechat.engine.process.messages import Event

Source = Callable[["Answer"], AsyncGenerator[Event, None]]


class Answer:
    """The events of one request, to be iterated once.

    Leaving the loop ends the request; `cancel` ends it too, but lets the loop see its Finished.
    """

    def __init__(self, source: Source) -> None:
        """`source`: starts the request and yields its events; called when the iteration begins."""
        self._source = source
        self._stop: Callable[[], None] | None = None
        self.cancelled = False

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events, as they come. Not kept here, so that leaving the loop drops it and ends the request."""
        return self._source(self)

    def cancel(self) -> None:
        """End the request at the engine's next step; its Finished still comes."""
        self.cancelled = True
        if self._stop is not None:
            self._stop()

    def when_cancelled(self, stop: Callable[[], None]) -> None:
        """For the source: how to end the request; called at once where it was cancelled before it began."""
        self._stop = stop
        if self.cancelled:
            stop()
