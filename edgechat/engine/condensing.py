"""The model's own request inside a request: to sum up what is about to leave the context."""

from collections.abc import Callable

from edgechat.engine import summary
from edgechat.engine.detokenize import text_of
from edgechat.engine.eviction import Eviction
from edgechat.engine.process.messages import Delta, Generate, Prefilled
from edgechat.engine.sequence import Segment, Transcript
from edgechat.engine.turn import Turn
from edgechat.engine.visible import Visible


class Condensing(Turn):
    """A turn that nobody hears: on a sequence of its own, forked where that can be, while another is held."""

    __slots__ = ("eviction", "of", "until")

    def __init__(
        self,
        of: Turn,
        eviction: Eviction,
        tokens: list[int],
        *,
        most: int,
        piece: Callable[[int], bytes],
        now: float,
    ) -> None:
        """Ask.

        Args:
            of: the turn that waits for it.
            eviction: what is to go.
            tokens: all that the model sees, the question for a summary at the end.
            most: tokens that it may write.
            piece: a token's bytes.
            now: seconds.
        """
        request = Generate(-1 - of.id, sampling=summary.SAMPLING, max_tokens=most)
        transcript = Transcript((Segment("", tuple(tokens)),))
        super().__init__(Visible(request, "", transcript, tokens), piece, key=request.id, now=now)
        self.of = of
        self.eviction = eviction
        self.until = now + summary.SECONDS
        """When the answer has waited long enough."""

    def text(self, *, whole: bool) -> str:
        """What of it is of use. `whole`: the model had ended."""
        return summary.usable(text_of(self._piece, self.answer), whole=whole)

    def delta(self, now: float) -> Delta | None:
        """Nobody hears it."""
        return None

    def last_delta(self, *, cut: bool) -> Delta | None:
        """Nobody hears it."""
        return None

    def prefilled(self, now: float) -> Prefilled | None:
        """Nobody hears it."""
        return None
