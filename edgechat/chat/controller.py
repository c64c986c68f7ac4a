"""The state machine of a chat: questions, answers, conversations. No terminal in it.

          start            send             first token         end
LOADING ---------> IDLE ---------> PREFILLING ---------> STREAMING ---------> IDLE
   |                 ^                  |                     |                 ^
   v                 |                  +------- stop --------+---> STOPPING ---+
UNAVAILABLE ---------+ send or regenerate tries to load again

RESTARTING stands for IDLE while a dead engine is being started again: questions wait until it is ready.
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from edgechat.chat.answer import Answer
from edgechat.chat.engine import ChatEngine, EngineState
from edgechat.chat.entries import Entry, Kind, Severity, from_saved, title_of
from edgechat.chat.events import (
    Added,
    Changed,
    ChatEvent,
    ChatStatus,
    GivenBack,
    Grew,
    Removed,
    Reset,
    State,
    StatusChanged,
    Unseen,
)
from edgechat.chat.prompt import Prompt, build_prompt
from edgechat.chat.saving import Recorder
from edgechat.engine.process.messages import (
    Delta,
    Event,
    Evicted,
    Finished,
    Generate,
    Note,
    Prefilled,
    Refused,
)
from edgechat.errors import EdgechatError, EngineCrashedError
from edgechat.history import Conversation, ConversationGone, HistoryStore, Status
from edgechat.records import FinishReason, ModelInfo, SamplingSettings

STOP_PATIENCE_S = 3.0
"""How long a stopped engine may take for its last step before the answer is closed without it."""

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


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What every new conversation begins with."""

    model: str
    """The model's name, as the person knows it; the one in the file may be anything."""
    model_path: str = ""
    """Its file, by which a conversation finds it again."""
    system_prompt: str = ""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int = 0


def engine_key(conversation: Conversation) -> str:
    """The name under which the engine keeps a conversation, the same in every run and never used again."""
    return f"chat-{conversation.id}-{conversation.created!r}"


class ChatController:
    """One chat: an engine, a store, and the conversation that is shown."""

    def __init__(
        self,
        engine: ChatEngine,
        store: HistoryStore,
        options: ChatOptions,
        listener: Callable[[ChatEvent], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        engine: answers the questions; started by `start`, closed by `close`.
        store: where conversations are saved.
        options: what new conversations begin with.
        listener: told of everything, on the event loop's thread.
        clock: monotonic seconds, for the rate of a running answer.
        """
        self.engine = engine
        self.store = store
        self.options = options
        self.entries: list[Entry] = []
        self.system_prompt = options.system_prompt
        self.status = ChatStatus(model=options.model)
        self.info: ModelInfo | None = None
        self.failure: EdgechatError | None = None
        """Why there is no model; None where there is one, or it is still being loaded."""
        self._listener = listener
        self._clock = clock
        self._recorder = Recorder(store, lambda text: self.notice(text, Severity.WARNING), options.model_path)
        self._keys = itertools.count(1)
        self._loading: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        self._waiting = False  # a question is there that nobody has begun to answer
        self._noted: set[str] = set()
        self._engine_state = EngineState.READY
        self._unseen = Unseen(None)

    # --- the engine

    def start(self) -> None:
        """Begin to load the model; questions asked meanwhile are answered when it is there."""
        if self._loading is None or self._loading.done():
            self._set(state=State.LOADING, progress=None)
            self._loading = asyncio.create_task(self._load(), name="load the model")

    async def _load(self) -> None:
        try:
            self.info = await self.engine.start()
        except EdgechatError as error:
            self.failure = error
            self._waiting = False
            self._set(state=State.UNAVAILABLE, progress=None)
            self.notice(str(error), Severity.ERROR)
            return
        self._engine_state = EngineState.READY
        self.failure = None
        self._set(state=State.IDLE, progress=None, context_size=self.info.n_ctx)
        self._answer_if_waiting()

    def loading_progress(self, progress: float) -> None:
        """The engine says how far loading has come, 0 to 1."""
        if self.status.state in {State.LOADING, State.RESTARTING}:
            self._set(progress=progress)

    def engine_state(self, state: EngineState) -> None:
        """Whoever keeps the engine running says where it stands; during `start` that knows better."""
        self._engine_state = state
        if self.status.state in {State.IDLE, State.RESTARTING}:
            self._rest()
            self._answer_if_waiting()
        if self._waiting and self.status.state is State.UNAVAILABLE:
            self.start()  # which says what the trouble is

    def _rest(self) -> None:
        """Enter the state in which nothing is under way."""
        states = {
            EngineState.READY: State.IDLE,
            EngineState.STARTING: State.RESTARTING,
            EngineState.ENDED: State.UNAVAILABLE,
        }
        self._set(state=states[self._engine_state], progress=None)

    async def close(self) -> None:
        """Save what there is, and end the engine."""
        for task in (self._loading, self._turn):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._recorder.close()
        await self.engine.close()

    def save_now(self) -> None:
        """Save a running answer at once, as one that was stopped: the app is about to end."""
        answer = self._answer
        if answer is not None and answer.entry is not None:
            self._recorder.write(
                replace(answer.entry, text=answer.text, status=Status.STOPPED),
                self._before(answer.entry),
                self.status.model,
                self.system_prompt,
            )

    # --- questions and answers

    def send(self, text: str) -> bool:
        """Ask.

        Returns:
            False where the question wasn't taken: it is empty, or an answer is under way.
        """
        if not text.strip() or self.status.busy:
            return False
        text = text.encode("utf-8", "replace").decode()  # a terminal may send half of a surrogate pair
        self._append(Kind.USER, text)
        if not self.status.title:
            self._set(title=title_of(text))
        self._waiting = True
        self._go_on()
        return True

    def regenerate(self) -> bool:
        """Answer the last question again, or at last.

        Returns:
            False where there is none, or an answer is under way.
        """
        if self.status.busy or not any(e.kind is Kind.USER for e in self.entries):
            return False
        replaced = self._drop_after_last_question()
        self._waiting = True
        self._go_on(replaced)
        return True

    def take_back(self) -> str | None:
        """Remove the last question with its answer, to be asked otherwise.

        Returns:
            The question; None where there is none, or an answer is under way.
        """
        if self.status.busy or not any(e.kind is Kind.USER for e in self.entries):
            return None
        for entry in self._drop_after_last_question():
            self._recorder.supersede(entry)
        question = self._remove(-1)
        self._recorder.supersede(question)
        self._waiting = False
        self._set(**self._context_in_use())
        return question.text

    async def stop(self) -> None:
        """End the running answer; what there is of it stays. A second call doesn't wait for the engine."""
        turn, answer = self._turn, self._answer
        if turn is None or turn.done() or answer is None:
            return
        if self.status.state is State.STOPPING:
            turn.cancel()
        else:
            self._set(state=State.STOPPING)
            answer.running.cancel()
            await asyncio.wait({turn}, timeout=STOP_PATIENCE_S)
            turn.cancel()
        await asyncio.wait({turn})

    def _go_on(self, replaced: tuple[Entry, ...] = ()) -> None:
        if self.status.state is State.UNAVAILABLE:
            self.start()
        self._answer_if_waiting(replaced)

    def _answer_if_waiting(self, replaced: tuple[Entry, ...] = ()) -> None:
        if self._waiting and self.status.state is State.IDLE:
            self._waiting = False
            prompt = build_prompt(self.entries, self.system_prompt)
            request = self._request(prompt)
            running = self.engine.generate(request)
            self._answer = Answer(running, self._clock(), prompt, request.sampling.seed, replaced)
            self._set(state=State.PREFILLING, progress=None, tokens_per_s=None, ttft_s=None, speculation=None)
            self._turn = asyncio.create_task(self._run(self._answer), name="answer")

    def _request(self, prompt: Prompt) -> Generate:
        sampling = self.options.sampling
        if sampling.seed is None:  # drawn here, so that the person can be told
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(32))
        return Generate(
            id=0,  # the engine's client numbers its requests
            messages=prompt.messages,
            sampling=sampling,
            max_tokens=self.options.max_tokens,
            conversation=self._conversation_key(),
            overflow="window",  # a conversation never ends because a message is long
        )

    async def _run(self, answer: Answer) -> None:
        trouble = ""
        answer.status = Status.FAILED
        try:
            async for event in answer.running:
                self._take(answer, event)
            trouble = answer.refusal
        except asyncio.CancelledError:
            answer.status = Status.STOPPED
        except EngineCrashedError as error:
            kept = "Your question" if answer.entry is None else "What there is of the answer"
            trouble = f"{error}. {kept} is kept: Ctrl+R asks again."
        except EdgechatError as error:
            trouble = str(error)
        except Exception as error:  # a bug must cost one answer, not the conversation
            trouble = f"the answer failed ({type(error).__name__}: {error}): please report this"
        await self._end(answer)
        given_back = answer.refusal and answer.entry is None and not answer.replaced
        if trouble:
            kept = " (The question was not sent: it is in the prompt again.)" if given_back else ""
            self.notice(f"{trouble}{kept}", Severity.ERROR)
        if given_back:
            self._give_back()

    def _give_back(self) -> None:
        """A question that was refused stays out of the next prompts: it is the person's again."""
        index = max(i for i, entry in enumerate(self.entries) if entry.kind is Kind.USER)
        question = self._remove(index)
        self._recorder.supersede(question)
        self._listener(GivenBack(question.text))

    def _take(self, answer: Answer, event: Event) -> None:
        match event:
            case Prefilled(done=done, total=total):
                answer.n_prompt = total
                if self.status.state is State.PREFILLING:
                    self._set(progress=done / total if total else None, n_context=done)
            case Delta(text=text, n_tokens=n_tokens):
                self._take_text(answer, text, n_tokens)
            case Note(kind=kind, text=text):
                if kind == "window":
                    answer.window_note = text
                else:
                    self._note_once(kind, text)
            case Evicted():
                self._take_evicted(answer, event)
            case Finished(reason=reason, timings=timings, n_context=n_context, tokens=tokens) as finished:
                answer.status = _ENDED[reason]
                answer.timings = timings
                answer.speculation = finished.speculation
                answer.n_tokens = len(tokens)
                answer.n_context = n_context
            case Refused(error=error):
                answer.refusal = error
            case _:
                pass

    def _take_evicted(self, answer: Answer, event: Evicted) -> None:
        answer.window_told = True
        answer.n_prompt = event.n_kept - answer.n_tokens  # so that the meter goes on from what stays
        answer.n_pinned, answer.n_lost = event.n_pinned, event.n_lost
        self._set(n_context=event.n_kept, n_pinned=event.n_pinned)
        last = answer.prompt.last_of(event.messages)
        self._set_unseen(last)
        if last is None and answer.window_note:  # parts of messages went, which no line can show
            self._note_once("window", answer.window_note)
        answer.window_note = ""

    def _note_once(self, kind: str, text: str) -> None:
        if kind not in self._noted:
            self._noted.add(kind)
            self.notice(text)

    def _take_text(self, answer: Answer, text: str, n_tokens: int) -> None:
        now = self._clock()
        answer.n_tokens = n_tokens
        if answer.entry is None:
            answer.first, answer.n_first = now, n_tokens
            if not answer.window_told:  # else it would have been, before the first word
                self._set_unseen(None)
                self._set(n_pinned=0)
            for entry in answer.replaced:
                self._recorder.supersede(entry)
            answer.replaced = ()
            answer.entry = self._append(Kind.ASSISTANT, "", status=Status.PARTIAL, model=self.status.model)
            self._recorder.begin_answer(answer.entry, lambda: answer.text)
            self._set(ttft_s=now - answer.asked, progress=None)
            if self.status.state is State.PREFILLING:
                self._set(state=State.STREAMING)
        answer.parts.append(text)
        self._listener(Grew(answer.entry.key, text))
        if n_tokens > answer.n_first and now > answer.first:
            rate = (n_tokens - answer.n_first) / (now - answer.first)
            self._set(tokens_per_s=rate, n_context=answer.n_prompt + n_tokens)

    async def _end(self, answer: Answer) -> None:
        if answer.entry is not None:
            ended = replace(
                answer.entry,
                text=answer.text,
                status=answer.status,
                n_tokens=answer.n_tokens,
                n_context=answer.n_context or answer.n_prompt + answer.n_tokens,
                timings=answer.timings,
                receipt=answer.receipt,
            )
            before = self._before(ended)
            saved = await self._recorder.end_answer(ended, before, self.status.model, self.system_prompt)
            self._replace([*saved[:-1], replace(ended, saved_id=saved[-1].saved_id)])
        elif answer.replaced:  # the old answer is better than none
            for entry in answer.replaced:
                self.entries.append(entry)
                self._listener(Added(entry))
        if self._answer is answer:
            self._answer = None
        timings = answer.timings
        if timings is not None:
            self._set(
                ttft_s=timings.ttft_s,
                tokens_per_s=timings.tokens_per_s or None,
                speculation=answer.speculation,
            )
        self._set(**self._context_in_use())
        self._rest()
        if answer.window_note:
            self.notice(answer.window_note)
        if answer.entry is None and answer.status in _SILENT:
            self.notice(_SILENT[answer.status])

    # --- conversations

    async def new(self) -> None:
        """Begin a conversation; the one that was shown stays in the list."""
        await self.stop()
        self._show([], self.options.system_prompt, "")

    async def resume(self, conversation_id: int) -> None:
        """Go on with a saved conversation.

        Raises:
            ConversationGone: it was deleted meanwhile.
            ConversationOpen: another app goes on with it.
            HistoryError: it can't be read.
        """
        conversation = self.store.get(conversation_id)
        self._recorder.claim(conversation)
        messages = self.store.messages(conversation_id)
        await self.stop()
        entries = [from_saved(next(self._keys), m) for m in messages if m.role != "system"]
        self._recorder.conversation = conversation
        unseen = [e.key for e in entries if (e.saved_id or 0) <= conversation.unseen_until]
        self._show(entries, conversation.system_prompt, conversation.title, unseen[-1] if unseen else None)
        if entries and conversation.model not in ("", self.status.model):
            self.notice(f"This began with {conversation.model}; from here on {self.status.model} answers.")

    async def delete(self, conversation_id: int) -> None:
        """Delete a saved conversation; if it is the one shown, a new one begins.

        Raises:
            HistoryError: the store can't be written.
        """
        if self.conversation_id == conversation_id:
            await self.new()
        key = ""
        with contextlib.suppress(ConversationGone):
            key = engine_key(self.store.get(conversation_id))
        self.store.delete(conversation_id)
        if key:
            self.engine.forget(key)

    def set_system_prompt(self, text: str) -> None:
        """Change the system prompt of this conversation, from the next question on."""
        text = text.strip()
        if text == self.system_prompt:
            return
        self.system_prompt = text
        self._recorder.set_system_prompt(text)
        if self.entries:
            self.notice("System prompt changed." if text else "System prompt removed.")

    @property
    def conversation_id(self) -> int | None:
        """The shown conversation's number in the database; None before its first message."""
        conversation = self._recorder.conversation
        return None if conversation is None else conversation.id

    @property
    def last_answer(self) -> str | None:
        """The text of the newest answer, also of one that is still growing."""
        if self._answer is not None and self._answer.entry is not None:
            return self._answer.text
        return next((e.text for e in reversed(self.entries) if e.kind is Kind.ASSISTANT), None)

    @property
    def last_answer_entry(self) -> Entry | None:
        """The newest answer that is whole."""
        growing = self._answer.entry if self._answer is not None else None
        answers = (e for e in reversed(self.entries) if e.kind is Kind.ASSISTANT)
        return next((e for e in answers if growing is None or e.key != growing.key), None)

    def notice(self, text: str, severity: Severity = Severity.INFORMATION) -> None:
        """Say something to the person, in the transcript; also what the engine's supervisor says."""
        entry = Entry(next(self._keys), Kind.NOTICE, text, severity=severity)
        self.entries.append(entry)
        self._listener(Added(entry))

    # --- inside

    def _show(self, entries: list[Entry], system_prompt: str, title: str, unseen: int | None = None) -> None:
        if not entries:
            self._recorder.forget()
        self.entries = entries
        self.system_prompt = system_prompt
        self._waiting = False
        self._noted.clear()
        self._listener(Reset(tuple(entries)))
        self._unseen = Unseen(None)
        self._set_unseen(unseen)
        self._set(title=title, tokens_per_s=None, ttft_s=None, speculation=None, **self._context_in_use())

    def _append(self, kind: Kind, text: str, *, status: Status = Status.COMPLETE, model: str = "") -> Entry:
        entry = Entry(next(self._keys), kind, text, status=status, model=model)
        saved = self._recorder.add(entry, self.entries, self.status.model, self.system_prompt)
        self._replace(saved[:-1])
        entry = saved[-1]
        self.entries.append(entry)
        self._listener(Added(entry))
        return entry

    def _replace(self, changed: list[Entry]) -> None:
        by_key = {entry.key: entry for entry in changed}
        for index, entry in enumerate(self.entries):
            if entry.key in by_key:
                self.entries[index] = by_key[entry.key]
                self._listener(Changed(by_key[entry.key]))

    def _drop_after_last_question(self) -> tuple[Entry, ...]:
        """Take the answers and notices after the last question out of the transcript."""
        dropped: list[Entry] = []
        while self.entries[-1].kind is not Kind.USER:
            entry = self._remove(-1)
            if entry.kind is Kind.ASSISTANT:
                dropped.insert(0, entry)
        return tuple(dropped)

    def _remove(self, index: int) -> Entry:
        entry = self.entries.pop(index)
        self._listener(Removed(entry.key))
        if entry.key == self._unseen.key:
            self._set_unseen(next((e.key for e in reversed(self.entries) if e.kind is not Kind.NOTICE), None))
        return entry

    def _set_unseen(self, key: int | None) -> None:
        """The model no longer sees what is up to this entry; None: it sees all."""
        upto = [] if key is None else [e for e in self.entries if e.key <= key and e.kind is not Kind.NOTICE]
        unseen = Unseen(upto[-1].key, len(upto)) if upto else Unseen(None)
        if unseen != self._unseen:
            self._unseen = unseen
            self._recorder.set_unseen(upto[-1] if upto else None)
            self._listener(unseen)

    def _before(self, entry: Entry) -> list[Entry]:
        return list(itertools.takewhile(lambda e: e.key != entry.key, self.entries))

    def _context_in_use(self) -> dict[str, int]:
        """What the meter shows between answers."""
        last = self.last_answer_entry
        if last is None:
            return {"n_context": 0, "n_pinned": 0}
        pinned = 0 if last.receipt is None else last.receipt.n_pinned
        return {"n_context": last.n_context, "n_pinned": pinned}

    def _set(self, **changes: object) -> None:
        status = replace(self.status, **changes)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            self._listener(StatusChanged(status))

    def _conversation_key(self) -> str:
        """The name under which the engine keeps this conversation; none where it isn't saved."""
        conversation = self._recorder.conversation
        return "" if conversation is None else engine_key(conversation)
