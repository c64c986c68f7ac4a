"""What is left of one request's conversation for the model to see."""

from dataclasses import dataclass, replace

from edgechat.engine.eviction import Eviction, Span
from edgechat.engine.holes import NONE, Filling, Holes, remove
from edgechat.engine.process.messages import Generate
from edgechat.engine.sequence import Transcript
from edgechat.engine.spans import Layout


@dataclass(slots=True)
class Visible:
    """What the model sees of one request's conversation."""

    request: Generate
    text: str
    """The conversation as it was rendered, without a BOS that was added; "" for a raw prompt."""
    transcript: Transcript
    tokens: list[int]
    """Those of the prompt and the answer that are not evicted, by position."""
    holes: Holes = NONE
    """Those that are, by index."""
    known_ends: tuple[int | None, ...] = ()
    n_cut: int = 0
    """About how many tokens texts had that were taken out of the request unread: none of them is an index."""
    layout: Layout | None = None
    """Found when it is first needed: most conversations never fill the context."""
    spans: tuple[Span, ...] = ()
    anchor: int | None = None
    """Index and position of the first message's own text, before which a summary is put; None where none
    can be."""

    def carry_out(self, eviction: Eviction, filling: Filling | None = None) -> None:
        """Forget what goes, and put `filling` in its place."""
        self.holes = self.holes.evicted(eviction.ranges)
        self.spans = eviction.spans
        remove(self.tokens, eviction.ranges)
        if filling is None:
            return
        stop = filling.at + self.holes.n_filled
        more = len(filling.tokens) - self.holes.n_filled
        self.tokens[filling.at : stop] = filling.tokens
        self.holes = Holes(self.holes.ranges, filling)
        self.spans = tuple(
            replace(
                span,
                start=span.start + more * (span.start >= stop),
                stop=span.stop + more * (span.stop >= stop),
            )
            for span in self.spans
        )
