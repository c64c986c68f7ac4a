"""One turn: what the engine says becomes an answer in the transcript, or the reason why there is none."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from edgechat.chat.announcer import Announcer
from edgechat.chat.answer import Answer
from edgechat.chat.dialogue import Dialogue
from edgechat.chat.entries import Entry, Severity
from edgechat.chat.events import GivenBack, Grew, State
from edgechat.engine.process.messages import (
    Delta,
    Event,
    Evicted,
    Finished,
    Note,
    Prefilled,
    Refused,
    Summarizing,
)
from edgechat.errors import EdgechatError, EngineCrashedError
from edgechat.history import Status
from edgechat.records import FinishReason

_ENDED = {
    FinishReason.STOP: Status.COMPLETE,
    FinishReason.LENGTH: Status.LENGTH,
    FinishReason.CANCELLED: Status.STOPPED,
}
_SILENT = {
    Status.COMPLETE: "The model had nothing to say. Ctrl+R asks again.",
    Status.LENGTH: "There is no room for an answer in the context. Ctrl+N begins a new conversation.",
    Status.STOPPED: "Stopped before the first word. Ctrl+R asks again.",
}
_CUT = "The limit of tokens cut the answer before its first character was whole. Ctrl+R asks again."


class Turn:
    """An answer under way. `run`, then `report`; whatever goes wrong costs this answer alone."""

    def __init__(
        self, answer: Answer, dialogue: Dialogue, announcer: Announcer, clock: Callable[[], float]
    ) -> None:
        """`clock`: monotonic seconds, for the rate."""
        self.answer = answer
        self._dialogue = dialogue
        self._announcer = announcer
        self._clock = clock
        self._trouble = ""

    def cancel(self) -> None:
        """End the answer at the engine's next step; what there is of it stays."""
        self.answer.running.cancel()

    async def run(self) -> None:
        """Take all that the engine says, and save the answer."""
        answer = self.answer
        answer.status = Status.FAILED
        try:
            async for event in answer.running:
                self._take(event)
            self._trouble = answer.refusal
        except asyncio.CancelledError:
            answer.status = Status.STOPPED
        except EngineCrashedError as error:
            kept = "Your question" if answer.entry is None else "What there is of the answer"
            self._trouble = f"{error}. {kept} is kept: Ctrl+R asks again."
        except EdgechatError as error:
            self._trouble = str(error)
        except Exception as error:  # a bug must cost one answer, not the conversation
            self._trouble = f"the answer failed ({type(error).__name__}: {error}): please report this"
        await self._end()

    def report(self) -> None:
        """Say what there is to say beside the answer. A question that was refused stays out of the next
        prompts: it is the person's again."""
        answer, dialogue = self.answer, self._dialogue
        if answer.window_note:
            dialogue.notice(answer.window_note)
        if answer.entry is None and answer.status in _SILENT:
            cut = answer.status is Status.LENGTH and answer.n_tokens
            dialogue.notice(_CUT if cut else _SILENT[answer.status])
        given_back = None
        if answer.refusal and answer.entry is None and not answer.replaced:
            replaces = dialogue.replaces
            given_back = GivenBack(dialogue.withdraw(), replaces)
            dialogue.show_context_in_use()
        if self._trouble:
            kept = "" if given_back is None else ". The question was not sent: it is in the prompt again."
            dialogue.notice(self._trouble.removesuffix(".") + kept if kept else self._trouble, Severity.ERROR)
        if given_back is not None:
            self._announcer.tell(given_back)

    def save_now(self) -> None:
        """Save the answer as one that was stopped: the app is about to end."""
        if self.answer.entry is not None:
            self._dialogue.save_answer(
                replace(
                    self.answer.entry,
                    text=self.answer.text,
                    n_context=self.answer.in_context,
                    status=Status.STOPPED,
                )
            )

    # --- what the engine says

    def _take(self, event: Event) -> None:
        answer, announcer = self.answer, self._announcer
        match event:
            case Prefilled(done=done, total=total):
                answer.n_prompt = total
                if announcer.status.state is State.PREFILLING:
                    announcer.set(progress=done / total if total else None, n_context=done)
            case Delta(text=text, n_tokens=n_tokens):
                self._take_text(text, n_tokens)
            case Note(kind=kind, text=text):
                if kind == "window":
                    answer.window_note = text
                else:
                    self._dialogue.note_once(kind, text)
            case Evicted():
                self._take_evicted(event)
            case Summarizing():
                announcer.set(summing_up=True, progress=None)
            case Finished():
                answer.status = _ENDED[event.reason]
                answer.timings = event.timings
                answer.speculation = event.speculation
                answer.n_tokens = len(event.tokens)
                answer.n_context = event.n_context
                answer.n_pinned = event.n_pinned or answer.n_pinned
            case Refused(error=error):
                answer.refusal = error
            case _:
                pass

    def _take_evicted(self, event: Evicted) -> None:
        answer = self.answer
        answer.window_told = True
        answer.n_prompt = event.n_kept - answer.n_tokens  # so that the meter goes on from what stays
        answer.n_pinned, answer.n_lost, answer.about = event.n_pinned, event.n_lost, event.about
        self._announcer.set(n_context=event.n_kept, n_pinned=event.n_pinned, summing_up=False)
        last = answer.prompt.last_of(event.messages)
        self._dialogue.set_unseen(last, event.summary)
        if last is None and answer.window_note:  # parts of messages went, which no line can show
            self._dialogue.note_once("window", answer.window_note)
        answer.window_note = ""

    def _take_text(self, text: str, n_tokens: int) -> None:
        now = self._clock()
        answer = self.answer
        answer.n_tokens = n_tokens
        answer.parts.append(text)
        if answer.entry is None:
            answer.first, answer.n_first = now, n_tokens
            answer.entry = self._begin(now)
        self._announcer.tell(Grew(answer.entry.key, text))
        if n_tokens > answer.n_first and now > answer.first:
            rate = (n_tokens - answer.n_first) / (now - answer.first)
            self._announcer.set(tokens_per_s=rate, n_context=answer.in_context)

    def _begin(self, now: float) -> Entry:
        """Make room for the first word."""
        answer, announcer = self.answer, self._announcer
        if not answer.window_told:  # else it would have been, before the first word
            self._dialogue.set_unseen(None)
        entry = self._dialogue.begin_answer(lambda: (answer.text, answer.in_context), answer.replaced)
        answer.replaced = ()
        announcer.set(ttft_s=now - answer.asked, progress=None)
        if announcer.status.state is State.PREFILLING:
            announcer.set(state=State.STREAMING)
        return entry

    async def _end(self) -> None:
        answer = self.answer
        if answer.entry is not None:
            await self._dialogue.end_answer(
                replace(
                    answer.entry,
                    text=answer.text,
                    status=answer.status,
                    n_tokens=answer.n_tokens,
                    n_context=answer.in_context,
                    timings=answer.timings,
                    receipt=answer.receipt,
                )
            )
        else:
            self._dialogue.put_back(answer.replaced)  # the old answer is better than none
        self._announcer.set(summing_up=False)
        if answer.timings is not None:
            self._announcer.set(
                ttft_s=answer.timings.ttft_s,
                tokens_per_s=answer.timings.tokens_per_s or None,
                speculation=answer.speculation,
            )
        self._dialogue.show_context_in_use()
