"""The decode loop: one batch a step, from admitting a turn to its end.

Everything between the tokens is decided in modules of their own: who goes when (scheduler), where a prompt is
computed (prefix), how many drafts are verified (rounds, drafting), which token comes next (sampling), what is
shown (detokenize, stop).
"""

from collections.abc import Callable

import msgspec

from edgechat.engine.cache import Cache
from edgechat.engine.condensing import Condensing
from edgechat.engine.drafting import Drafter
from edgechat.engine.evicting import Evicting
from edgechat.engine.grammar import DeadEnd
from edgechat.engine.judging import judge_rows
from edgechat.engine.memory import Memory, Remembered
from edgechat.engine.pace import Pace
from edgechat.engine.process.messages import Event, Generate, Note, Refused
from edgechat.engine.repetition import ENDED, is_caught
from edgechat.engine.rounds import Rounds
from edgechat.engine.sampling import BadLogits
from edgechat.engine.scheduler import Scheduler, Share
from edgechat.engine.sliding import Sliding
from edgechat.engine.turn import Turn
from edgechat.errors import ExitCode
from edgechat.records import FinishReason
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Logits, Runtime, Wanted


class DecodeLoop:
    """Computes what a scheduler's turns wait for, until each has ended."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler[Turn],
        *,
        sliding: Sliding,
        evicting: Evicting,
        cache: Cache,
        memory: Memory,
        pace: Pace | None,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        load_s: float,
    ) -> None:
        """Decode on `runtime`, whose threads `pace` sets before each step; None leaves them as they are.
        `load_s`, what loading took, is told with the first answer."""
        self._runtime = runtime
        self._scheduler = scheduler
        self._sliding = sliding
        self._evicting = evicting
        self._cache = cache
        self._memory = memory
        self._pace = pace
        self._emit = emit
        self._clock = clock
        self._load_s = load_s
        self._eog = frozenset(runtime.info.eog_ids)
        self._drafter: Drafter | None = None
        self._rounds: Rounds | None = None

    def draft_with(self, drafter: Drafter | None) -> None:
        """Draft with another drafter, or none, from the next answer on."""
        self._drafter = self._evicting.drafter = drafter
        self._rounds = None if drafter is None else Rounds(drafter, self._sliding, self._runtime.n_batch)

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
        batch = [_chunk(share) for share in shares]
        n_tokens = sum(share.n_tokens for share in shares)
        if self._pace is not None:
            self._pace.before(n_tokens)
        started = self._clock()
        try:
            logits = self._runtime.decode(batch)
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
        if self._pace is not None and not (self._scheduler.active or self._scheduler.waiting):
            self._pace.rest()
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
                rows = logits if len(shares) == 1 else logits[row : row + chunk.n_rows]
                row += chunk.n_rows
                self._sample(turn, rows, now, started if len(shares) == 1 else None, learn=goes_on)
        if self._drafter is not None and n_decode and not n_prefill:
            self._drafter.observe(n_decode, self._clock() - started)
        self._scheduler.budget.observe(n_decode, n_prefill, now - started)

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
        n_answer = turn.n_answer
        n_known = len(turn.slot.tokens) - len(drafts)
        try:
            verdict = judge_rows(turn.sampler, rows, drafts, take)
        except BadLogits as error:
            self._refuse(
                turn,
                f"the model gave no usable numbers ({error}): its file may be damaged, "
                f"check it with `edgechat models verify {self._runtime.info.path}`",
            )
            return
        except DeadEnd as error:
            self._refuse(turn, f"no token can follow in the form that was asked for: {error}", ExitCode.USAGE)
            return
        if drafts and not self._cache.roll_back(turn, min(len(turn.tokens), n_known + verdict.n_accepted)):
            turn.answering = False  # until all is computed anew
        if self._drafter is not None and learn:
            self._drafter.record(turn, verdict, None if started is None else self._clock() - started)
        if reason is not None:
            self.finish(turn, reason, now)
        elif _has_no_end(turn.request) and is_caught(turn.answer, n_answer):
            self._emit(Note(turn.id, "window", ENDED))
            self.finish(turn, FinishReason.LENGTH, now)
        elif not isinstance(turn, Condensing) and not self._evicting.slide(turn):
            self.finish(turn, FinishReason.LENGTH, now)
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

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._emit(event)

    # --- room

    def _take_turns(self) -> None:
        """Let the longest running answer wait, where others wait and it has had a whole context's tokens."""
        scheduler = self._scheduler
        if scheduler.waiting and (turn := scheduler.overdue(self._runtime.n_ctx)) is not None:
            self._tell(turn.stall())
            self._cache.free(turn.slot)
            turn.stand()
            scheduler.wait_again(turn)

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
            self.finish(turn, FinishReason.LENGTH, self._clock())
        else:
            self._refuse(
                turn,
                f"the prompt of {turn.n_prompt} tokens doesn't fit into the context of "
                f"{self._runtime.n_ctx}: shorten it",
                ExitCode.USAGE,
            )

    # --- the end of a turn

    def finish(self, turn: Turn, reason: FinishReason, now: float) -> None:
        """End a turn: tell the rest, and keep what was computed for the next one."""
        if isinstance(turn, Condensing):
            self._evicting.condensed(turn, whole=reason is FinishReason.STOP)
            return
        if turn.held:
            self._evicting.abandon(turn)
        self._tell(turn.last_delta(cut=reason is not FinishReason.STOP))
        finished = turn.finished(reason, self._load_s, now, self._runtime.n_ctx)
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


def _has_no_end(request: Generate) -> bool:
    """Whether nobody but the model may end the answer."""
    return not request.max_tokens and not request.ignore_eog


def _chunk(share: Share[Turn]) -> Chunk:
    """What a turn's share of a batch is: tokens of its prompt, or its last one and the drafts after it."""
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
