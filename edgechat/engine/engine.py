"""The decode loop: requests in, events out, one batch a step.

Synchronous and without threads: the engine's process drives it. Everything between the tokens is decided
in modules of their own: who goes when (scheduler), where a prompt is computed (prefix), which token comes
next (sampling), what is shown (detokenize, stop).
"""

import logging
import time
from collections.abc import Callable
from typing import cast

import msgspec

from edgechat.engine.cache import Cache
from edgechat.engine.drafting import Drafter
from edgechat.engine.holes import NONE
from edgechat.engine.judging import judge_rows
from edgechat.engine.lengths import Lengths
from edgechat.engine.memory import Memory, Remembered
from edgechat.engine.pace import Pace
from edgechat.engine.process.messages import Event, Generate, Note, NoteKind, Refused
from edgechat.engine.rendering import ChatRenderer, PlainRenderer, sentence
from edgechat.engine.sampling import BadLogits
from edgechat.engine.scheduler import Scheduler, Share
from edgechat.engine.sequence import TextTokens, Transcript
from edgechat.engine.sliding import Sliding, Visible, remove
from edgechat.engine.sliding import sentence as eviction_sentence
from edgechat.engine.states import StateStore
from edgechat.engine.turn import Turn
from edgechat.engine.window import PromptTooLong
from edgechat.errors import EdgechatError, ExitCode, ResourceError, UsageError, from_exception
from edgechat.records import FinishReason, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits, Runtime, Wanted

_log = logging.getLogger(__name__)

MAX_STOPS = 64
CROWDED_STEPS = 32
"""Steps without drafts after one for whose drafts the cache had no room."""


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
            states: where conversations are kept that the cache has no room for; None keeps none.
        """
        self.runtime = runtime
        self.info: ModelInfo = runtime.info
        self._renderer: ChatRenderer = template or PlainRenderer()
        self._plain = self._renderer if isinstance(self._renderer, PlainRenderer) else None
        self._emit = emit
        self._clock = clock
        self._load_s = load_s
        self._texts = TextTokens(runtime.tokenizer)
        self._lengths = Lengths(runtime.tokenizer, runtime.n_ctx)
        self._eog = frozenset(runtime.info.eog_ids)
        self._scheduler = Scheduler[Turn](runtime.n_batch, runtime.n_sequences, runtime.n_ctx, max_waiting)
        self._memory = Memory()
        adapts = adapt_threads and runtime.info.n_gpu_layers == 0 and runtime.info.n_threads > 1
        self._pace = Pace(runtime, runtime.info.n_threads, clock=clock) if adapts else None
        self._drafter = drafter
        self._crowded = 0
        """Steps without drafts, for which there was no room."""
        self._cache = Cache(runtime, self._memory, states or StateStore())
        self._sliding = Sliding(
            runtime.n_ctx,
            self._renderer,
            self._texts,
            recompute=not self._cache.shifts,
            slack=slack,
            trained=self.info.n_ctx_train,
        )

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._scheduler.active or self._scheduler.waiting)

    def submit(self, request: Generate) -> None:
        """Begin to answer, or emit Refused."""
        try:
            turn = self._accept(request)
        except Exception as error:
            ours = from_exception(error)
            if ours is None:
                _log.exception("request %d", request.id)
                ours = EdgechatError(f"a bug of edgechat: {type(error).__name__}: {error}")
            too_long = isinstance(error, PromptTooLong)
            self._emit(Refused(request.id, ours.code, " ".join(str(ours).split()), too_long))
            return
        self._scheduler.submit(turn)

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
        return not self.busy and self._cache.unsaved

    def save_one(self) -> None:
        """Save a conversation's state, for the next run: call it while there is nothing else to do."""
        self._cache.save_one()

    def save_all(self, seconds: float) -> None:
        """Save what can be within `seconds`: the engine is about to end."""
        self._cache.save_all(seconds, self._clock)

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: let go of what is known of it."""
        self._memory.drop(conversation)
        self._cache.forget(conversation)
        if self._drafter is not None:
            self._drafter.forget(conversation)

    def step(self) -> bool:
        """Compute one batch and tell what came of it; False when there is nothing to do."""
        self._take_turns()
        while (turn := self._scheduler.next_to_admit()) is not None:
            self._cache.seat(turn)
            self._scheduler.admit(turn)
        if self._drafter is not None:
            self._draft(self._drafter)
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
            if not self._withdraw_drafts():
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

    # --- from a request to a turn

    def _accept(self, request: Generate) -> Turn:
        """The turn that answers `request`. Emits the notes of its rendering."""
        now = self._clock()
        self._check(request)
        completion = self._plain.completion(request.messages) if self._plain and request.complete else None
        if completion is not None:
            request = msgspec.structs.replace(request, messages=(), prompt=completion.text)
        self._lengths.check(request)
        stop, plain = request.stop, self._plain is not None and bool(request.messages)
        if request.messages:
            rendered = self._renderer.render(request.messages, True)
            text, notes = rendered.text, tuple(rendered.notes)
        elif completion is not None:
            text, notes = completion.text, completion.notes
        else:
            text, notes = request.prompt, ()
        if plain:
            stop = (*stop, *PlainRenderer.stop)
        visible, key = self._visible(request, text)
        turn = Turn(visible, self.runtime.tokenizer.piece, key=key, stop=stop, strip=plain, now=now)
        if not turn.tokens:
            raise UsageError("the prompt has no tokens: write something")
        eviction = self._sliding.admit(visible)
        if eviction is not None:
            turn.fitted(eviction)
        for note in notes:
            self._emit(Note(request.id, cast(NoteKind, str(note)), sentence(note)))
        if visible.holes.ranges:
            self._tell_evicted(turn, 0 if eviction is None else eviction.freed)
        return turn

    def _visible(self, request: Generate, text: str) -> tuple[Visible, str | int]:
        """What the model sees of a request, and the key of the conversation that it goes on with."""
        whole = self._texts.with_bos(text)
        known = self._known(request, whole)
        if known is None:
            known = Remembered("", Transcript())
        transcript = self._texts.extend(known.transcript, whole)
        tokens = transcript.tokens
        holes = known.carried(tokens) if request.messages else NONE
        remove(tokens, holes.ranges)
        ends = known.known_ends(request.messages, text)
        return Visible(request, text, transcript, tokens, holes, ends), known.key

    def _check(self, request: Generate) -> None:
        if bool(request.messages) == bool(request.prompt):
            raise UsageError("a request needs either messages or a prompt")
        if request.max_tokens < 0:
            raise UsageError(f"max-tokens of {request.max_tokens}: give 0 (no limit) or more")
        if len(request.stop) > MAX_STOPS:
            raise UsageError(f"{len(request.stop)} stop strings: give at most {MAX_STOPS}")
        if not all(request.stop):
            raise UsageError("a stop string is empty: leave it out")
        if any(turn.id == request.id for turn in self._scheduler):
            raise UsageError(f"request {request.id} is being answered already")
        if self._scheduler.full:
            raise ResourceError(
                f"the engine is busy: {self._scheduler.max_waiting} requests are waiting; try again later"
            )

    def _known(self, request: Generate, text: str) -> Remembered | None:
        """The conversation that `text` continues: the one that is named, or else the closest one.

        A prompt on its own continues none: the same prompt gives the same tokens, whatever was asked before.
        """
        name = request.conversation
        named = self._memory.get(name) or self._cache.recall(name) if name else None
        if named is not None or not request.messages:
            return named
        return self._memory.closest(text, self.runtime.tokenizer.piece)

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
        elif not self._slide(turn):
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

    # --- drafts

    def _draft(self, drafter: Drafter) -> None:
        """Ask for the tokens that this step is to verify. Beside prompts there are none: their steps are
        long enough."""
        active = self._scheduler.active
        if self._crowded or not all(turn.answering for turn in active):
            self._crowded = max(0, self._crowded - 1)
            return
        room, rows = self.runtime.n_batch - len(active), len(active) - 1
        for turn in active:
            # A round may not pass the point where plain decoding would evict.
            most = min(room, self._sliding.room(turn.n_tokens))
            if turn.request.max_tokens:
                most = min(most, turn.request.max_tokens - turn.n_answer - 1)
            turn.drafts = drafter.propose(turn, most, rows)
            room -= len(turn.drafts)
            rows += len(turn.drafts)

    def _withdraw_drafts(self) -> bool:
        """There is no room for the drafts: do without for a while. False where there are none."""
        drafted = [turn for turn in self._scheduler.active if turn.drafts]
        for turn in drafted:
            turn.drafts = ()
        if self._drafter is not None and drafted:
            self._drafter.withdrawn(drafted)
            self._crowded = CROWDED_STEPS
        return bool(drafted)

    # --- the window

    def _slide(self, turn: Turn) -> bool:
        """Evict what the answer has grown beyond, if it has; False where nothing can go."""
        try:
            eviction = self._sliding.make_room(turn.visible)
        except UsageError as error:
            self._emit(Note(turn.id, "window", str(error)))
            return False
        if eviction is not None:
            if self._drafter is not None:
                self._drafter.evicted(turn, eviction.ranges)
            if not self._cache.slide(turn, eviction):
                turn.answering = False  # until all that stays is computed anew
            self._tell(turn.stall())
            self._tell_evicted(turn, eviction.freed)
        return True

    def _tell_evicted(self, turn: Turn, n_tokens: int) -> None:
        event = self._sliding.event(turn.visible, n_tokens)
        if n_tokens and not turn.warned:
            turn.warned = True
            text = eviction_sentence(event, len(turn.request.messages))
            self._emit(Note(turn.id, "window", text))
        self._emit(event)

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
        if self._cache.make_room():
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
        self._tell(turn.last_delta())
        finished = turn.finished(reason, self._load_s, now, self.runtime.n_ctx)
        if self._drafter is not None:
            finished = msgspec.structs.replace(finished, speculation=self._drafter.end(turn))
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
        self._scheduler.remove(turn)
        if self._drafter is not None:
            self._drafter.end(turn)
        self._cache.free(turn.slot)
        self._emit(Refused(turn.id, code, error))
