"""The decode loop: requests in, events out, one batch a step.

Synchronous and without threads: the engine's process drives it. Everything between the tokens is decided
in modules of their own: who goes when (scheduler), where a prompt is computed (prefix), which token comes
next (sampling), what is shown (detokenize, stop).
"""

import logging
import time
from collections.abc import Callable
from typing import cast

from edgechat.engine.holes import NONE
from edgechat.engine.memory import Memory, Remembered
from edgechat.engine.prefix import least_recently_used, place, reusable
from edgechat.engine.process.messages import Event, Generate, Note, NoteKind, Refused
from edgechat.engine.rendering import ChatRenderer, PlainRenderer, sentence
from edgechat.engine.sampling import BadLogits, Row
from edgechat.engine.scheduler import Scheduler, Share
from edgechat.engine.sequence import Slot, TextTokens, Transcript
from edgechat.engine.sliding import Sliding, Visible, remove
from edgechat.engine.sliding import sentence as eviction_sentence
from edgechat.engine.turn import Turn
from edgechat.engine.window import Eviction
from edgechat.errors import EdgechatError, ExitCode, ResourceError, UsageError, from_exception
from edgechat.records import FinishReason, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Runtime, Wanted

_log = logging.getLogger(__name__)

MAX_STOPS = 64


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
    ) -> None:
        """Take over `runtime`.

        Args:
            runtime: whose sequences are all this engine's from now on.
            template: None for a base model, which continues a transcript.
            emit: gets each event; must not call the engine.
            clock: seconds.
            load_s: what loading took; told with the first answer.
            max_waiting: requests beyond it are refused.
            slack: tokens of context kept free for drafts.
        """
        self.runtime = runtime
        self.info: ModelInfo = runtime.info
        self._plain = template is None
        self._renderer: ChatRenderer = template or PlainRenderer()
        self._emit = emit
        self._clock = clock
        self._load_s = load_s
        self._texts = TextTokens(runtime.tokenizer)
        self._eog = frozenset(runtime.info.eog_ids)
        self._slots = [Slot(number) for number in range(runtime.n_sequences)]
        self._scheduler = Scheduler[Turn](runtime.n_batch, runtime.n_sequences, runtime.n_ctx, max_waiting)
        self._memory = Memory()
        # A layer with a window of its own has let go of what a shift would need to be exact.
        self._shifts = runtime.can.shift and not runtime.info.n_swa
        self._sliding = Sliding(
            runtime.n_ctx,
            self._renderer,
            self._texts,
            recompute=not self._shifts,
            slack=slack,
            trained=self.info.n_ctx_train,
        )
        self._uses = 0

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
            self._emit(Refused(request.id, ours.code, " ".join(str(ours).split())))
            return
        self._scheduler.submit(turn)

    def cancel(self, request_id: int) -> None:
        """End an answer where it is. Unknown requests have ended already: nothing to do."""
        turn = next((turn for turn in self._scheduler if turn.id == request_id), None)
        if turn is not None:
            self._finish(turn, FinishReason.CANCELLED, self._clock())

    def release_idle(self) -> None:
        """Give back the cache of all conversations that are not being answered."""
        while (slot := least_recently_used(self._slots)) is not None:
            self._free(slot)

    def step(self) -> bool:
        """Compute one batch and tell what came of it; False when there is nothing to do."""
        self._take_turns()
        while (turn := self._scheduler.next_to_admit()) is not None:
            self._seat(turn)
        shares = self._scheduler.plan()
        if not shares:
            return False
        batch = [self._chunk(share) for share in shares]
        started = self._clock()
        try:
            logits = self.runtime.decode(batch)
        except ContextFull:
            self._make_room()
            return True
        except (DecodeFailed, ValueError) as error:
            for share in shares:
                self._refuse(share.job, f"the model failed at this answer ({error}): ask again")
            return True
        now = self._clock()
        n_decode = n_prefill = row = 0
        for share, chunk in zip(shares, batch, strict=True):
            turn = share.job
            turn.slot.tokens.extend(chunk.tokens)
            if turn.answering:
                n_decode += share.n_tokens
            else:
                n_prefill += share.n_tokens
                turn.start(started)
                self._tell(turn.prefilled(now))
            if chunk.logits is Wanted.LAST:
                turn.answering = True
                self._sample(turn, logits[row], now)
                row += 1
        self._scheduler.budget.observe(n_decode, n_prefill, now - started)
        return True

    # --- from a request to a turn

    def _accept(self, request: Generate) -> Turn:
        """The turn that answers `request`. Emits the notes of its rendering."""
        now = self._clock()
        self._check(request)
        stop, plain = request.stop, self._plain and bool(request.messages)
        if request.messages:
            rendered = self._renderer.render(request.messages, True)
            text, notes = rendered.text, tuple(rendered.notes)
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
        named = self._memory.get(request.conversation) if request.conversation else None
        if named is not None or not request.messages:
            return named
        return self._memory.closest(text, self.runtime.tokenizer.piece)

    def _seat(self, turn: Turn) -> None:
        """Give the turn the sequence where least has to be computed."""
        conversation = turn.request.conversation
        own = self._own(turn)
        if own is None or not self._shift_into(turn, own):
            stays = own is not None and own.tokens and turn.carried.ranges and turn.to_evict is None
            self._place(turn, own if stays else None)
        self._scheduler.admit(turn)
        slot = turn.slot
        slot.busy = True
        slot.conversation = conversation

    def _own(self, turn: Turn) -> Slot | None:
        """The idle slot that holds the turn's conversation, less just what was evicted from it before."""
        own = [
            slot
            for slot in self._slots
            if slot.tokens
            and not slot.busy
            and slot.owner == turn.key
            and slot.conversation == turn.request.conversation
            and slot.holes == turn.carried
        ]
        return max(own, key=lambda slot: slot.last_used, default=None)

    def _shift_into(self, turn: Turn, slot: Slot) -> bool:
        """Evict from the conversation's own slot what the turn's prompt has no room for, if that pays."""
        eviction = turn.to_evict
        if eviction is None or not self._shifts:
            return False
        before = turn.before_eviction()
        keep = reusable(before, slot, self.runtime.can, own=True)
        if keep <= eviction.ranges[0][0]:
            return False
        if not self._cut(slot, keep) or not self._shift(slot, eviction):
            return False
        turn.sit(slot)
        return True

    def _place(self, turn: Turn, own: Slot | None) -> None:
        placement = place(turn.tokens, turn.request.conversation, self._slots, self.runtime.can, own)
        if placement is None:
            raise RuntimeError("no idle sequence for a turn that was admitted")
        slot, keep, parent = placement.slot, placement.keep, placement.parent
        if parent is None:
            self._cut(slot, keep)
        else:
            self._free(slot)
            try:
                self.runtime.fork(parent.number, slot.number, keep)
                slot.tokens = parent.tokens[:keep]
            except ValueError:  # the runtime knows better what it can't share
                self._free(slot)
        turn.sit(slot)

    def _cut(self, slot: Slot, keep: int) -> bool:
        """Forget all of a slot but its first tokens; False where all had to go."""
        if keep == len(slot.tokens):
            return True
        if keep:
            try:
                self.runtime.truncate(slot.number, keep)
            except ValueError:  # the runtime knows better what it can't take back
                keep = 0
        if not keep:
            self._free(slot)
            return False
        slot.cut(keep)
        return True

    # --- a step

    def _chunk(self, share: Share[Turn]) -> Chunk:
        turn, count = share.job, share.n_tokens
        slot = turn.slot
        start = len(slot.tokens)
        whole = start + count == len(turn.tokens)
        return Chunk(
            slot.number, turn.tokens[start : start + count], start, Wanted.LAST if whole else Wanted.NONE
        )

    def _sample(self, turn: Turn, row: Row, now: float) -> None:
        """Draw the turn's next token and tell what there is to tell."""
        try:
            token = turn.sampler.sample(row)
        except BadLogits as error:
            self._refuse(
                turn,
                f"the model gave no usable numbers ({error}): its file may be damaged, "
                f"check it with `edgechat models verify {self.info.path}`",
            )
            return
        request = turn.request
        if token in self._eog and not request.ignore_eog:
            turn.end(now)
            self._finish(turn, FinishReason.STOP, now)
        elif turn.take(token, now):
            self._finish(turn, FinishReason.STOP, now)
        elif turn.n_answer == request.max_tokens or not self._slide(turn):
            self._finish(turn, FinishReason.LENGTH, now)
        else:
            self._tell(turn.delta(now))

    # --- the window

    def _slide(self, turn: Turn) -> bool:
        """Evict what the answer has grown beyond, if it has; False where nothing can go."""
        try:
            eviction = self._sliding.make_room(turn.visible)
        except UsageError as error:
            self._emit(Note(turn.id, "window", str(error)))
            return False
        if eviction is not None:
            if not (self._shifts and self._shift(turn.slot, eviction)):
                self._cut(turn.slot, min(eviction.ranges[0][0], self._rollback_to(turn.slot, eviction)))
                turn.slot.busy = True
                turn.slot.conversation = turn.request.conversation
                turn.answering = False  # until all that stays is computed anew
            turn.slot.holes = turn.visible.holes
            self._tell(turn.stall())
            self._tell_evicted(turn, eviction.freed)
        return True

    def _rollback_to(self, slot: Slot, eviction: Eviction) -> int:
        """How many tokens before an eviction the runtime can go back to."""
        start, can = eviction.ranges[0][0], self.runtime.can.rollback
        return start if can < 0 or len(slot.tokens) - start <= can else 0

    def _shift(self, slot: Slot, eviction: Eviction) -> bool:
        """Evict from the cache, and close the gaps; False where the slot must be computed anew."""
        held = len(slot.tokens)
        ranges = [(start, min(stop, held)) for start, stop in eviction.ranges if start < held]
        for start, stop in reversed(ranges):
            try:
                self._evict(slot, start, stop)
            except (ValueError, ContextFull):  # a restored state may lack what a shift would show again
                self._cut(slot, ranges[0][0])
                return False
            del slot.tokens[start:stop]
            slot.tainted = min(slot.tainted, start)
        return True

    def _evict(self, slot: Slot, start: int, stop: int) -> None:
        """Evict one range; a shared head must be copied first, for which idle conversations make room."""
        while True:
            try:
                self.runtime.evict(slot.number, start, stop)
                return
            except ContextFull:
                idle = least_recently_used(self._slots)
                if idle is None or idle is slot:
                    raise
                self._free(idle)

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
            self._free(turn.slot)
            turn.stand()
            scheduler.wait_again(turn)

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._emit(event)

    def _make_room(self) -> None:
        """The context is full: give up what is needed least."""
        if (slot := least_recently_used(self._slots)) is not None:
            self._free(slot)
            return
        if (turn := self._scheduler.give_way()) is not None:  # computed again when there is room
            self._tell(turn.stall())
            self._free(turn.slot)
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
        self._emit(turn.finished(reason, self._load_s, now, self.runtime.n_ctx))
        self._load_s = 0.0
        self._scheduler.remove(turn)
        self._uses += 1
        slot, visible = turn.slot, turn.visible
        slot.busy = False
        slot.last_used = self._uses
        slot.owner = turn.request.conversation or self._uses
        self._memory.put(
            Remembered(
                slot.owner,
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
        self._free(turn.slot)
        self._emit(Refused(turn.id, code, error))

    def _free(self, slot: Slot) -> None:
        self.runtime.free(slot.number)
        slot.clear()
