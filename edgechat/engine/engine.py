"""The decode loop: requests in, events out, one batch a step.

Synchronous and without threads: the engine's process drives it. Everything between the tokens is decided
in modules of their own: who goes when (scheduler), where a prompt is computed (prefix), which token comes
next (sampling), what is shown (detokenize, stop).
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from edgechat.engine.prefix import least_recently_used, place
from edgechat.engine.process.messages import Event, Generate, Note, NoteKind, Refused
from edgechat.engine.rendering import ChatRenderer, PlainRenderer, sentence
from edgechat.engine.sampling import BadLogits, Row
from edgechat.engine.scheduler import Scheduler, Share
from edgechat.engine.sequence import Slot, TextTokens, Transcript
from edgechat.engine.turn import Turn
from edgechat.errors import EdgechatError, ExitCode, ResourceError, UsageError, from_exception
from edgechat.records import FinishReason, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Runtime, Wanted

_log = logging.getLogger(__name__)

MAX_STOPS = 64
MAX_TRANSCRIPTS = 64
"""Conversations whose tokens are remembered, whether or not the cache still holds them."""


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
    ) -> None:
        """Take over `runtime`.

        Args:
            runtime: whose sequences are all this engine's from now on.
            template: None for a base model, which continues a transcript.
            emit: gets each event; must not call the engine.
            clock: seconds.
            load_s: what loading took; told with the first answer.
            max_waiting: requests beyond it are refused.
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
        self._transcripts: OrderedDict[str | int, Transcript] = OrderedDict()
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
        text = self._texts.with_bos(text)
        transcript = self._texts.extend(self._known(request, text), text)
        turn = Turn(request, transcript, self.runtime.tokenizer.piece, stop=stop, strip=plain, now=now)
        self._check_room(turn)
        for note in notes:
            self._emit(Note(request.id, cast(NoteKind, str(note)), sentence(note)))
        return turn

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

    def _check_room(self, turn: Turn) -> None:
        """A prompt must leave room for one token of an answer."""
        n_ctx = self.runtime.n_ctx
        if not turn.tokens:
            raise UsageError("the prompt has no tokens: write something")
        if turn.n_prompt >= n_ctx:
            needed = -(-(turn.n_prompt + 512) // 1024) * 1024
            larger = f", or load the model with --ctx {needed}" if needed <= self.info.n_ctx_train else ""
            raise UsageError(
                f"the conversation has {turn.n_prompt} tokens and the context holds {n_ctx}: "
                f"shorten it or begin a new one{larger}"
            )

    def _known(self, request: Generate, text: str) -> Transcript:
        """The transcript that `text` continues: the conversation's own, or else the closest one.

        A prompt on its own continues none: the same prompt gives the same tokens, whatever was asked before.
        """
        if request.conversation in self._transcripts:
            return self._transcripts[request.conversation]
        if not request.messages:
            return Transcript()
        piece = self.runtime.tokenizer.piece
        return max(
            (transcript.agreed(text, piece) for transcript in self._transcripts.values()),
            key=lambda transcript: transcript.n_characters,
            default=Transcript(),
        )

    def _seat(self, turn: Turn) -> None:
        """Give the turn the sequence where least has to be computed."""
        conversation = turn.request.conversation
        placement = place(turn.tokens, conversation, self._slots, self.runtime.can)
        if placement is None:
            raise RuntimeError("no idle sequence for a turn that was admitted")
        self._scheduler.admit(turn)
        slot, keep, parent = placement.slot, placement.keep, placement.parent
        try:
            if parent is not None:
                self.runtime.fork(parent.number, slot.number, keep)
                slot.tokens = parent.tokens[:keep]
            elif keep < len(slot.tokens):
                if keep:
                    self.runtime.truncate(slot.number, keep)
                    del slot.tokens[keep:]
                else:
                    self._free(slot)
        except ValueError:  # the runtime knows better what it can't take back
            self._free(slot)
        slot.busy = True
        slot.conversation = conversation
        turn.sit(slot)

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
        elif turn.n_answer == request.max_tokens or turn.n_tokens >= self.runtime.n_ctx:
            self._finish(turn, FinishReason.LENGTH, now)
        else:
            self._tell(turn.delta(now))

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
        self._emit(turn.finished(reason, self._load_s, now))
        self._load_s = 0.0
        self._scheduler.remove(turn)
        self._uses += 1
        turn.slot.busy = False
        turn.slot.last_used = self._uses
        key = turn.request.conversation or self._uses
        self._transcripts[key] = turn.whole_transcript()
        self._transcripts.move_to_end(key)
        if len(self._transcripts) > MAX_TRANSCRIPTS:
            self._transcripts.popitem(last=False)

    def _refuse(self, turn: Turn, error: str, code: ExitCode = ExitCode.ENGINE_CRASHED) -> None:
        """Give up a turn; what its sequence holds is not to be trusted."""
        self._scheduler.remove(turn)
        self._free(turn.slot)
        self._emit(Refused(turn.id, code, error))

    def _free(self, slot: Slot) -> None:
        self.runtime.free(slot.number)
        slot.tokens = []
        slot.conversation = ""
        slot.busy = False
