"""Evictions carried out: what goes, what the model writes of it first, and what the client hears."""

from collections.abc import Callable

from edgechat.engine.cache import Cache
from edgechat.engine.condensing import Condensing
from edgechat.engine.drafting import Drafter
from edgechat.engine.eviction import Eviction
from edgechat.engine.holes import Filling
from edgechat.engine.process.messages import Event, Note, Summarizing
from edgechat.engine.scheduler import Scheduler
from edgechat.engine.sliding import Sliding, sentence
from edgechat.engine.turn import Turn
from edgechat.errors import UsageError


class Evicting:
    """What leaves the context of one engine's answers."""

    def __init__(
        self,
        sliding: Sliding,
        cache: Cache,
        scheduler: Scheduler[Turn],
        *,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """Carry out what `sliding` decides."""
        self._sliding = sliding
        self._cache = cache
        self._scheduler = scheduler
        self.drafter: Drafter | None = None
        """What keeps its own model's sequences in step; None: nothing does."""
        self._emit = emit
        self._clock = clock

    # --- a new request

    def fit(self, turn: Turn) -> int:
        """Make a new turn's prompt fit; where what goes is to be summed up, that waits for its sequence.

        Returns:
            The tokens that went; `told_of` tells the client.

        Raises:
            UsageError: it can't fit.
        """
        eviction = self._sliding.admit(turn.visible)
        if eviction is None:
            return 0
        if self._sliding.question(turn.visible, eviction) is not None:
            turn.planned = eviction
            return 0
        self._take_out(turn, eviction)
        return eviction.freed

    def told_of(self, turn: Turn, n_tokens: int) -> None:
        """Tell what a new turn doesn't see, of which `n_tokens` went just now."""
        visible = turn.visible
        if visible.request.summarize and self._sliding.summaries.trouble:
            self._emit(Note(turn.id, "summary", self._sliding.summaries.trouble))
        if visible.holes.ranges and turn.planned is None:
            self._tell(turn, n_tokens)

    def before_seat(self, turn: Turn) -> bool:
        """Sum up first what a turn that is to be seated has no room for; False where there is nothing."""
        eviction, turn.planned = turn.planned, None
        if eviction is None:
            return False
        self._cache.restore(turn)
        if self._begin(turn, eviction):
            turn.planned = eviction
            return True
        self._take_out(turn, eviction)
        self._tell(turn, eviction.freed)
        return False

    def _take_out(self, turn: Turn, eviction: Eviction, filling: Filling | None = None) -> None:
        """Of a turn that has no sequence yet."""
        turn.visible.carry_out(eviction, filling)
        turn.fitted(eviction, shift=filling is None)

    # --- an answer that grows

    def slide(self, turn: Turn) -> bool:
        """Evict what the answer has grown beyond, if it has; False where nothing can go."""
        try:
            eviction = self._sliding.make_room(turn.visible)
        except UsageError as error:
            self._emit(Note(turn.id, "window", str(error)))
            return False
        if eviction is not None and not self._begin(turn, eviction):
            self._slide(turn, eviction)
        return True

    def _slide(self, turn: Turn, eviction: Eviction, filling: Filling | None = None) -> None:
        """Of a turn whose tokens are in the cache."""
        turn.visible.carry_out(eviction, filling)
        if filling is not None:
            # Computed anew, not shifted: llama.cpp takes a sequence's tokens in the order of their positions
            # only, so that none can be put before what stays; and what stays should know of the summary.
            self._cache.refill(turn, filling.at)
            turn.answering = False
        else:
            if self.drafter is not None:
                self.drafter.evicted(turn, eviction.ranges)
            if not self._cache.slide(turn, eviction):
                turn.answering = False  # until all that stays is computed anew
        self._emit_if(turn.stall())
        self._tell(turn, eviction.freed)

    # --- summaries

    def _begin(self, turn: Turn, eviction: Eviction) -> bool:
        """Let the model sum up what goes, while the turn waits; False where that can't be."""
        tokens = self._sliding.question(turn.visible, eviction)
        if tokens is None or not self._cache.has_idle:
            return False
        self._emit_if(turn.stall())
        self._emit(Summarizing(turn.id))
        most = self._sliding.summaries.n_tokens
        piece = self._cache.runtime.tokenizer.piece
        job = Condensing(turn, eviction, tokens, most=most, piece=piece, now=self._clock())
        self._cache.seat(job)
        self._scheduler.join(job)
        turn.held = True
        return True

    def condensed(self, job: Condensing, *, whole: bool = False, usable: bool = True) -> None:
        """The model has summed up: what that is of goes, and the turn goes on.

        Args:
            job: which was to.
            whole: it came to its end.
            usable: False where it failed: what goes is forgotten then.
        """
        turn, eviction = job.of, job.eviction
        self._let_go(job)
        filling = self._sliding.filling(turn.visible, job.text(whole=whole) if usable else "")
        turn.planned = None
        if turn.slot.number >= 0:
            self._slide(turn, eviction, filling)
        else:
            self._take_out(turn, eviction, filling)
            self._tell(turn, eviction.freed)

    def give_up_one(self) -> bool:
        """There is no room: do without a summary that is being written. False where none is."""
        job = next((turn for turn in self._scheduler.active if isinstance(turn, Condensing)), None)
        if job is not None:
            self.condensed(job, usable=False)
        return job is not None

    def end_late_ones(self) -> None:
        """What takes too long is cut where it is."""
        now = self._clock()
        for turn in list(self._scheduler.active):
            if isinstance(turn, Condensing) and now >= turn.until:
                self.condensed(turn)

    def abandon(self, turn: Turn) -> None:
        """The turn ends: nobody needs the summary that it waits for."""
        for job in list(self._scheduler.active):
            if isinstance(job, Condensing) and job.of is turn:
                self._let_go(job)

    def _let_go(self, job: Condensing) -> None:
        job.of.held = False
        self._scheduler.remove(job)
        self._cache.free(job.slot)

    # --- telling

    def _tell(self, turn: Turn, n_tokens: int) -> None:
        event = self._sliding.event(turn.visible, n_tokens)
        if n_tokens and not turn.warned:
            turn.warned = True
            self._emit(Note(turn.id, "window", sentence(event, len(turn.request.messages))))
        self._emit(event)

    def _emit_if(self, event: Event | None) -> None:
        if event is not None:
            self._emit(event)
