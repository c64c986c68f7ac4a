"""The decode loop: requests in, events out, one batch a step.

Synchronous and without threads: the engine's process drives it. Everything between the tokens is decided
in modules of their own: who goes when (scheduler), where a prompt is computed (prefix), which token comes
next (sampling), what is shown (detokenize, stop).
"""

import logging
import time
from collections.abc import Callable

import msgspec

from edgechat.engine.accepting import Accepting
from edgechat.engine.cache import Cache
from edgechat.engine.condensing import Condensing
from edgechat.engine.drafting import Drafter
from edgechat.engine.evicting import Evicting
from edgechat.engine.judging import judge_rows
from edgechat.engine.memory import Memory, Remembered
from edgechat.engine.pace import Pace
from edgechat.engine.process.messages import Event, Generate, Note, Refused
from edgechat.engine.rendering import ChatRenderer, PlainRenderer
from edgechat.engine.rounds import Rounds
from edgechat.engine.sampling import BadLogits
from edgechat.engine.scheduler import Scheduler, Share
from edgechat.engine.sequence import TextTokens
from edgechat.engine.sliding import Sliding
from edgechat.engine.states import StateStore
from edgechat.engine.turn import Turn
from edgechat.engine.window import PromptTooLong
from edgechat.errors import EdgechatError, ExitCode, ResourceError, UsageError, from_exception
from edgechat.records import FinishReason, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits, Runtime, Wanted

_log = logging.getLogger(__name__)


class Engine:
    """Answers requests on one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        template: ChatRenderer | None,
        emit: Callable[[Event], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        load_s: float = 0.0,
        max_waiting: int = 64,
        slack: int = 0,
        states: StateStore | None = None,
        adapt_threads: bool = False,
        idle_clock: Callable[[], float] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """Take over `runtime`.

        Args:
            runtime: whose sequences are all this engine's from now on.
            template: None or a PlainRenderer for a model that continues plain text.
            emit: gets each event; must not call the engine.
            clock: seconds.
            load_s: what loading took; told with the first answer.
            max_waiting: requests beyond it are refused.
            slack: tokens of context kept free for drafts.
            drafter: proposes tokens, of which several are verified in one step; None: plain decoding.
            adapt_threads: change the runtime's threads as the machine's load changes.
            idle_clock: seconds in which the machine's cores were idle, for that; None where it is unknown.
            states: where conversations are kept that the cache has no room for; None keeps none.
        """
        self.runtime = runtime
        self.info: ModelInfo = runtime.info
        self._emit = emit
        self._clock = clock
        self._load_s = load_s
        self._eog = frozenset(runtime.info.eog_ids)
        self._scheduler = Scheduler[Turn](runtime.n_batch, runtime.n_sequences, runtime.n_ctx, max_waiting)
        self._memory = Memory()
        adapts = adapt_threads and runtime.info.n_gpu_layers == 0 and runtime.info.n_threads > 1
        self._pace = (
            Pace(runtime, runtime.info.n_threads, clock=clock, idle_clock=idle_clock) if adapts else None
        )
        self._cache = Cache(runtime, self._memory, states or StateStore())
        renderer: ChatRenderer = template or PlainRenderer()
        texts = TextTokens(runtime.tokenizer)
        self._sliding = sliding = Sliding(
            runtime.n_ctx,
            renderer,
            texts,
            recompute=not self._cache.shifts,
            slack=slack,
            trained=self.info.n_ctx_train,
        )
        self._evicting = Evicting(sliding, self._cache, self._scheduler, emit=emit, clock=clock)
        self._accepting = Accepting(
            runtime,
            renderer,
            texts,
            sliding=sliding,
            evicting=self._evicting,
            cache=self._cache,
            memory=self._memory,
            emit=emit,
        )
        self.draft_with(drafter)

    def draft_with(self, drafter: Drafter | None) -> None:
        """Draft with another drafter, or none, from the next answer on; nothing may be running."""
        self._drafter = self._evicting.drafter = drafter
        self._rounds = None if drafter is None else Rounds(drafter, self._sliding, self.runtime.n_batch)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._scheduler.active or self._scheduler.waiting)

    def submit(self, request: Generate) -> None:
        """Begin to answer, or emit Refused."""
        try:
            self._check(request)
            turn = self._accepting.turn(request, self._clock())
        except Exception as error:
            ours = from_exception(error)
            if ours is None:
                _log.exception("request %d", request.id)
                ours = EdgechatError(f"a bug of edgechat: {type(error).__name__}: {error}")
            too_long = isinstance(error, PromptTooLong)
            self._emit(Refused(request.id, ours.code, " ".join(str(ours).split()), too_long))
            return
        self._scheduler.submit(turn)

    def _check(self, request: Generate) -> None:
        if any(turn.id == request.id for turn in self._scheduler):
            raise UsageError(f"request {request.id} is being answered already")
        if self._scheduler.full:
            raise ResourceError(
                f"the engine is busy: {self._scheduler.max_waiting} requests are waiting; try again later"
            )

    def cancel(self, request_id: int) -> None:
        """End an answer where it is. Unknown requests have ended already: nothing to do."""
        turn = next((turn for turn in self._scheduler if turn.id == request_id), None)
        if turn is not None:
            self._finish(turn, FinishReason.CANCELLED, self._clock())

    def release_idle(self) -> None:
        """Give back the cache of all conversations that are not being answered."""
        self._cache.release_idle()

    @property
    def unsaved(self) -> bool:
        """Whether `save_one` has something to do."""
        drafter = self._drafter
        return not self.busy and (self._cache.saving.unsaved or (drafter is not None and drafter.unsaved))

    def save_one(self) -> None:
        """Save a conversation's state, or what was learnt of drafts, for the next run: call it while there is
        nothing else to do."""
        if self._drafter is not None and self._drafter.unsaved:
            self._drafter.save()
        else:
            self._cache.saving.save_one()

    def save_all(self, seconds: float) -> None:
        """Save what can be within `seconds`: the engine is about to end."""
        if self._drafter is not None:
            self._drafter.save()
        self._cache.saving.save_all(seconds, self._clock)

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: let go of what is known of it."""
        self._memory.drop(conversation)
        self._cache.forget(conversation)
        if self._drafter is not None:
            self._drafter.forget(conversation)

    def step(self) -> bool:
        """Compute one batch and tell what came of it; False when there is nothing to do."""
        self._take_turns()
        self._evicting.end_late_ones()
        while (turn := self._scheduler.next_to_admit()) is not None:
            if self._evicting.before_seat(turn):
                break
            self._cache.seat(turn)
            self._scheduler.admit(turn)
        if self._rounds is not None:
            self._rounds.draft(self._scheduler.running)
        shares = self._scheduler.plan()
        if not shares:
            return False
        batch = [self._chunk(share) for share in shares]
        n_tokens = sum(share.n_tokens for share in shares)
        if self._pace is not None:
            self._pace.before(n_tokens)
        started = self._clock()
        try:
            logits = self.runtime.decode(batch)
        except ContextFull:
            if self._rounds is None or not self._rounds.withdraw(self._scheduler.active):
                self._make_room()
            return True
        except (DecodeFailed, ValueError) as error:
            for share in shares:
                self._refuse(share.job, f"the model failed at this answer ({error}): ask again")
            return True
        now = self._clock()
        if self._pace is not None:
            self._pace.after(n_tokens, now - started)
        self._digest(shares, batch, logits, started, now)
        return True

    def _digest(
        self, shares: list[Share[Turn]], batch: list[Chunk], logits: Logits, started: float, now: float
    ) -> None:
        """Take from a batch's logits what each turn gets, and learn from the time that it took."""
        n_decode = n_prefill = row = 0
        for share, chunk in zip(shares, batch, strict=True):
            turn = share.job
            turn.slot.tokens.extend(chunk.tokens)
            goes_on = turn.answering
            if goes_on:
                n_decode += share.n_tokens
            else:
                n_prefill += share.n_tokens
                turn.start(started)
                self._tell(turn.prefilled(now))
            if chunk.logits is not Wanted.NONE:
                turn.answering = True
                rows = logits[row : row + chunk.n_rows]
                row += chunk.n_rows
                self._sample(turn, rows, now, started if len(shares) == 1 else None, learn=goes_on)
        if self._drafter is not None and n_decode and not n_prefill:
            self._drafter.observe(n_decode, self._clock() - started)
        self._scheduler.budget.observe(n_decode, n_prefill, now - started)

    # --- a step

    def _chunk(self, share: Share[Turn]) -> Chunk:
        turn, count = share.job, share.n_tokens
        slot = turn.slot
        start = len(slot.tokens)
        if turn.drafts:
            drafted = (draft.token for draft in turn.drafts)
            return Chunk(slot.number, [*turn.tokens[start:], *drafted], start, Wanted.ALL)
        whole = start + count == len(turn.tokens)
        return Chunk(
            slot.number, turn.tokens[start : start + count], start, Wanted.LAST if whole else Wanted.NONE
        )

    def _sample(self, turn: Turn, rows: Logits, now: float, started: float | None, *, learn: bool) -> None:
        """Draw the turn's next tokens, one for each draft that stands and one more, and tell what there is.

        Args:
            turn: whose step it was.
            rows: float32 [drafts + 1, n_vocab].
            now: seconds.
            started: when the step began; None where others shared it.
            learn: the step was one of the answer's, not the prompt's last.
        """
        reason: FinishReason | None = None

        def take(token: int) -> bool:
            nonlocal reason
            reason = self._take(turn, token, now)
            return reason is not None

        drafts, turn.drafts = turn.drafts, ()
        n_known = len(turn.slot.tokens) - len(drafts)
        try:
            verdict = judge_rows(turn.sampler, rows, drafts, take)
        except BadLogits as error:
            self._refuse(
                turn,
                f"the model gave no usable numbers ({error}): its file may be damaged, "
                f"check it with `edgechat models verify {self.info.path}`",
            )
            return
        if drafts and not self._cache.roll_back(turn, min(len(turn.tokens), n_known + verdict.n_accepted)):
            turn.answering = False  # until all is computed anew
        if self._drafter is not None and learn:
            self._drafter.record(turn, verdict, None if started is None else self._clock() - started)
        if reason is not None:
            self._finish(turn, reason, now)
        elif not isinstance(turn, Condensing) and not self._evicting.slide(turn):
            self._finish(turn, FinishReason.LENGTH, now)
        else:
            self._tell(turn.delta(now))

    def _take(self, turn: Turn, token: int, now: float) -> FinishReason | None:
        """Make `token` part of the answer; why the answer ends with it, if it does."""
        request = turn.request
        if token in self._eog and not request.ignore_eog:
            turn.end(now)
            return FinishReason.STOP
        if turn.take(token, now):
            return FinishReason.STOP
        return FinishReason.LENGTH if turn.n_answer == request.max_tokens else None

    # --- room

    def _take_turns(self) -> None:
        """Let the longest running answer wait, where others wait and it has had a whole context's tokens."""
        scheduler = self._scheduler
        if scheduler.waiting and (turn := scheduler.overdue(self.runtime.n_ctx)) is not None:
            self._tell(turn.stall())
            self._cache.free(turn.slot)
            turn.stand()
            scheduler.wait_again(turn)

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._emit(event)

    def _make_room(self) -> None:
        """The context is full: give up what is needed least."""
        if self._cache.make_room() or self._evicting.give_up_one():
            return
        if (turn := self._scheduler.give_way()) is not None:  # computed again when there is room
            self._tell(turn.stall())
            self._cache.free(turn.slot)
            turn.stand()
            return
        turn = self._scheduler.active[0]
        if turn.n_answer:
            self._emit(Note(turn.id, "window", "The context is full, and nothing in it can go."))
            self._finish(turn, FinishReason.LENGTH, self._clock())
        else:
            self._refuse(
                turn,
                f"the prompt of {turn.n_prompt} tokens doesn't fit into the context of {self.runtime.n_ctx}: "
                "shorten it",
                ExitCode.USAGE,
            )

    # --- the end of a turn

    def _finish(self, turn: Turn, reason: FinishReason, now: float) -> None:
        """Tell the rest, and keep what was computed for the next turn."""
        if isinstance(turn, Condensing):
            self._evicting.condensed(turn, whole=reason is FinishReason.STOP)
            return
        if turn.held:
            self._evicting.abandon(turn)
        self._tell(turn.last_delta())
        finished = turn.finished(reason, self._load_s, now, self.runtime.n_ctx)
        finished = msgspec.structs.replace(
            finished,
            n_pinned=self._sliding.pinned(turn.visible),
            speculation=None if self._drafter is None else self._drafter.end(turn),
        )
        self._emit(finished)
        self._load_s = 0.0
        self._scheduler.remove(turn)
        visible, key = turn.visible, self._cache.leave(turn)
        self._memory.put(
            Remembered(
                key,
                turn.whole_transcript(),
                visible.holes,
                turn.request.messages,
                visible.known_ends if visible.layout is None else visible.layout.ends,
                visible.text,
            )
        )

    def _refuse(self, turn: Turn, error: str, code: ExitCode = ExitCode.ENGINE_CRASHED) -> None:
        """Give up a turn; what its sequence holds is not to be trusted."""
        if isinstance(turn, Condensing):
            self._evicting.condensed(turn, usable=False)
            return
        self._scheduler.remove(turn)
        if self._drafter is not None:
            self._drafter.end(turn)
        self._cache.free(turn.slot)
        self._emit(Refused(turn.id, code, error))
