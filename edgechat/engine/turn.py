"""One turn of the model: a request on its way from prompt to answer."""

from array import array
from collections.abc import Callable, Sequence

from edgechat.engine.detokenize import Detokenizer, n_tokens_before, text_of
from edgechat.engine.eviction import Eviction
from edgechat.engine.holes import Holes
from edgechat.engine.process.messages import Delta, Finished, Prefilled
from edgechat.engine.sampling import LogitStep, Sampler
from edgechat.engine.sequence import Segment, Slot, Transcript
from edgechat.engine.speculation.proposal import Draft
from edgechat.engine.stop import StopStrings
from edgechat.engine.visible import Visible
from edgechat.records import FinishReason, Timings

DELTA_S = 0.05
"""Shortest time between two deltas: each one wakes the app, which takes a core from the model."""
PREFILLED_S = 0.1
"""Shortest time between two reports of progress."""


class Turn:
    """What is known of a request: its tokens, and how far its text has been told."""

    __slots__ = (
        "_detokenizer",
        "_first_at",
        "_ids",
        "_last_at",
        "_n_told",
        "_piece",
        "_prefilled",
        "_started_at",
        "_stops",
        "_strip",
        "_submitted_at",
        "_told_at",
        "_told_progress_at",
        "_untold",
        "answer",
        "answering",
        "cached",
        "carried",
        "drafts",
        "held",
        "id",
        "key",
        "n_prompt",
        "n_run",
        "planned",
        "request",
        "sampler",
        "slot",
        "to_evict",
        "tokens",
        "visible",
        "warned",
    )

    def __init__(
        self,
        visible: Visible,
        piece: Callable[[int], bytes],
        *,
        key: str | int = "",
        stop: Sequence[str] = (),
        strip: bool = False,
        steps: Sequence[LogitStep] = (),
        now: float = 0.0,
    ) -> None:
        """Begin with what the model sees of the prompt.

        Args:
            visible: the prompt, less what was evicted before.
            piece: a token's bytes.
            key: of the conversation that it goes on with, if any.
            stop: strings that end the answer.
            strip: don't show the spaces that the answer begins with.
            steps: changes to the logits beside the sampling settings' own.
            now: seconds.
        """
        self.id = visible.request.id
        self.request = visible.request
        self.visible = visible
        self.key = key
        self.tokens = visible.tokens
        """What the model sees of the prompt and the answer, computed or not."""
        self.answer = array("i")
        """All of it, whether or not the model still sees its beginning. It may be long: 4 bytes a token."""
        self.n_prompt = len(self.tokens)
        """Tokens of the prompt that the model saw when it began to answer."""
        self.carried: Holes = visible.holes
        """What was evicted before this turn."""
        self.to_evict: Eviction | None = None
        """What was evicted to make this prompt fit; to be done in the cache as well."""
        self.planned: Eviction | None = None
        """What is to go as soon as it is summed up."""
        self.held = False
        """Whether it waits for that."""
        self.sampler = Sampler(self.request.sampling, visible.transcript.tokens, steps)
        self.slot = Slot(-1)
        """Where it is computed; its tokens are those that are."""
        self.answering = False
        self.drafts: Sequence[Draft] = ()
        """Tokens that the next step verifies after the last one."""
        self.cached = 0
        self.n_run = 0
        """Tokens of the answer since it got its slot."""
        self.warned = False
        """Whether the person was told that the context is full."""
        self._piece = piece
        self._detokenizer = Detokenizer(piece)
        self._stops = StopStrings(stop)
        self._strip = strip
        self._ids: tuple[int, ...] = ()
        self._untold = ""
        self._n_told = 0  # characters let through by the stop strings
        self._prefilled: int | None = None
        self._submitted_at = now
        self._started_at: float | None = None
        self._first_at: float | None = None
        self._last_at = now
        self._told_at: float | None = None
        self._told_progress_at: float | None = None

    @property
    def pending(self) -> int:
        """Tokens known or drafted, and not yet computed."""
        return len(self.tokens) - len(self.slot.tokens) + len(self.drafts)

    @property
    def n_tokens(self) -> int:
        """Tokens known, less those that are about to go."""
        return len(self.tokens) - (0 if self.planned is None else self.planned.freed)

    @property
    def n_answer(self) -> int:
        """Tokens of the answer so far."""
        return len(self.answer)

    def fitted(self, eviction: Eviction, *, shift: bool = True) -> None:
        """The prompt was made to fit. `shift`: what stays is in the cache, and only moves."""
        self.to_evict = eviction if shift else None
        self.n_prompt = len(self.tokens)

    def before_eviction(self) -> list[int]:
        """The prompt as it would be, had it not been made to fit."""
        return self.carried.applied(self.visible.transcript.tokens)

    def sit(self, slot: Slot) -> None:
        """Be computed in `slot`, going on from the tokens that it holds."""
        self.slot = slot
        self.to_evict = None
        self.n_run = 0
        slot.holes = self.visible.holes
        if not self.n_answer:
            self.cached = len(slot.tokens)

    def stand(self) -> None:
        """Give up the slot: all will be computed again, elsewhere and later."""
        self.slot = Slot(-1)
        self.to_evict = None
        self.answering = False
        self.drafts = ()

    def start(self, now: float) -> None:
        """The first of its prompt is about to be computed."""
        if self._started_at is None:
            self._started_at = now

    def take(self, token: int, now: float) -> bool:
        """Make `token` part of the answer; True where it completes a stop string."""
        self._prompt_is_done(now)
        self._last_at = now
        self.tokens.append(token)
        self.answer.append(token)
        self.n_run += 1
        self.sampler.accept(token)
        self._show(self._stops.feed(self._detokenizer.feed(token)))
        return self._stops.stopped

    def end(self, now: float) -> None:
        """A token that is no part of the answer has ended it."""
        if self._first_at is None:
            self._prompt_is_done(now)
            self._last_at = now

    def _prompt_is_done(self, now: float) -> None:
        if self._first_at is None:
            self._first_at = now
            self._prefilled = self.n_prompt - self.cached

    def delta(self, now: float) -> Delta | None:
        """What there is to tell, if it is time."""
        if not self._untold or (self._told_at is not None and now - self._told_at < DELTA_S):
            return None
        self._told_at = now
        text, self._untold = self._untold, ""
        return Delta(self.id, text, self.n_answer)

    def stall(self) -> Delta | None:
        """What there is to tell, before a longer wait."""
        self._told_at = None
        return self.delta(self._last_at)

    def last_delta(self, *, cut: bool) -> Delta | None:
        """All that was held back, at the end of the answer; where it was `cut`, no unfinished character."""
        if not self._stops.stopped:
            self._show(self._stops.feed(self._detokenizer.flush(cut=cut)))
            self._show(self._stops.flush())
        return self.stall()

    def prefilled(self, now: float) -> Prefilled | None:
        """How far the prompt has come, if it is time."""
        done = min(len(self.slot.tokens), self.n_prompt)
        told = self._told_progress_at
        if self._first_at is not None or (
            done < self.n_prompt and told is not None and now - told < PREFILLED_S
        ):
            return None
        self._told_progress_at = now
        return Prefilled(self.id, done, self.n_prompt, self.cached)

    def finished(self, reason: FinishReason, load_s: float, now: float, n_ctx: int) -> Finished:
        """The whole answer and what it took, in a context of `n_ctx` tokens."""
        answer = self._whole_answer()
        if self._stops.stopped:
            answer = answer[: n_tokens_before(self._piece, answer, self._n_told)]
        first = self._first_at
        prefilled_tokens = self._prefilled
        if prefilled_tokens is None:
            prefilled_tokens = max(0, len(self.slot.tokens) - self.cached)
        started = now if self._started_at is None else self._started_at
        prefilled = now if first is None else first
        decode_s = 0.0 if first is None else self._last_at - first
        timings = Timings(
            load_s=load_s,
            ttft_s=(now if first is None else first) - self._submitted_at,
            prefill_tokens=prefilled_tokens,
            prefill_s=prefilled - started,
            decode_tokens=self.n_answer,
            decode_s=decode_s,
            tokens_per_s=(self.n_answer - 1) / decode_s if decode_s > 0 and self.n_answer > 1 else 0.0,
            cached_tokens=self.cached,
        )
        return Finished(self.id, reason, answer, timings, min(self.n_tokens, n_ctx))

    def whole_transcript(self) -> Transcript:
        """The conversation up to here, the answer as it was generated."""
        transcript, answer = self.visible.transcript, self._whole_answer()
        text = text_of(self._piece, answer)
        if not text:
            return transcript
        return Transcript((*transcript.segments, Segment(text, answer, generated=True)))

    def _whole_answer(self) -> tuple[int, ...]:
        """Its tokens, for those who keep them: one copy for all."""
        if len(self._ids) != len(self.answer):
            self._ids = tuple(self.answer)
        return self._ids

    def _show(self, text: str) -> None:
        self._n_told += len(text)
        if self._strip and text:
            text = text.lstrip()
            self._strip = not text
        self._untold += text
