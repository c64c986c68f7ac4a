"""The state machine of a chat: loading, questions, answers. No terminal in it.

          start            send             first token         end
LOADING ---------> IDLE ---------> PREFILLING ---------> STREAMING ---------> IDLE
   |                 ^                  |                     |                 ^
   v                 |                  +------- stop --------+---> STOPPING ---+
UNAVAILABLE ---------+ send or regenerate tries to load again

RESTARTING stands for IDLE while a dead engine is being started again: questions wait until it is ready.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from edgechat.chat.announcer import Announcer
from edgechat.chat.answer import Answer
from edgechat.chat.dialogue import Dialogue, engine_key
from edgechat.chat.engine import ChatEngine, EngineState
from edgechat.chat.entries import Entry, Severity
from edgechat.chat.events import ChatEvent, ChatStatus, State
from edgechat.chat.options import ChatOptions
from edgechat.chat.prompt import build_prompt
from edgechat.chat.request import build_request
from edgechat.chat.turn import Turn
from edgechat.errors import EdgechatError
from edgechat.history import Conversation, ConversationGone, HistoryStore
from edgechat.records import ModelInfo

STOP_PATIENCE_S = 3.0
"""How long a stopped engine may take for its last step before the answer is closed without it."""

_AT_REST = {
    EngineState.READY: State.IDLE,
    EngineState.STARTING: State.RESTARTING,
    EngineState.ENDED: State.UNAVAILABLE,
}


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
        self.info: ModelInfo | None = None
        self.failure: EdgechatError | None = None
        """Why there is no model; None where there is one, or it is still being loaded."""
        self._announcer = Announcer(ChatStatus(model=options.model), listener)
        self._dialogue = Dialogue(store, options, self._announcer)
        self._clock = clock
        self._loading: asyncio.Task[None] | None = None
        self._turn: Turn | None = None
        self._answering: asyncio.Task[None] | None = None
        self._waiting = False  # a question is there that nobody has begun to answer
        self._replaced: tuple[Entry, ...] = ()  # out of sight, for the answer that is waited for
        self._engine_state = EngineState.READY

    # --- what there is to see

    @property
    def status(self) -> ChatStatus:
        """All that a status line shows."""
        return self._announcer.status

    @property
    def entries(self) -> list[Entry]:
        """The messages and notices of the transcript."""
        return self._dialogue.entries

    @property
    def system_prompt(self) -> str | None:
        """The shown conversation's; None for the model's own, "" for none at all."""
        return self._dialogue.system_prompt

    @property
    def conversation_id(self) -> int | None:
        """The shown conversation's number in the database; None before its first message."""
        return self._dialogue.conversation_id

    @property
    def last_answer(self) -> str | None:
        """The text of the newest answer, also of one that is still growing."""
        if self._turn is not None and self._turn.answer.entry is not None:
            return self._turn.answer.text
        answer = self._dialogue.last_answer
        return None if answer is None else answer.text

    @property
    def last_answer_entry(self) -> Entry | None:
        """The newest answer that is whole."""
        return self._dialogue.last_answer

    def notice(self, text: str, severity: Severity = Severity.INFORMATION) -> None:
        """Say something to the person, in the transcript; also what the engine's supervisor says."""
        self._dialogue.notice(text, severity)

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
            self._wait_no_more()
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

    async def close(self) -> None:
        """Save what there is, and end the engine."""
        for task in (self._loading, self._answering):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._dialogue.close()
        await self.engine.close()

    def save_now(self) -> None:
        """Save a running answer at once, as one that was stopped: the app is about to end."""
        if self._turn is not None:
            self._turn.save_now()

    # --- questions and answers

    def send(self, text: str) -> bool:
        """Ask; after `edit`, in place of the last question and its answers.

        Returns:
            False where the question wasn't taken: it is empty, or an answer is under way.
        """
        if not text.strip() or self.status.busy:
            return False
        text = text.encode("utf-8", "replace").decode()  # a terminal may send half a pair
        if self._replaced:
            self._wait_no_more()  # the next question is about what was to be replaced
        if self.status.editing:
            self._dialogue.ask_instead(text)
            self._forget_waiting()
            self._dialogue.show_context_in_use()
        else:
            self._dialogue.ask(text)
        self._go_on()
        return True

    def regenerate(self) -> bool:
        """Answer the last question again, or at last.

        Returns:
            False where there is none, or an answer is under way.
        """
        if self.status.busy or not self._dialogue.has_question:
            return False
        self._set(editing=False)
        self._replaced += self._dialogue.drop_answers()
        self._go_on()
        return True

    def edit(self) -> str | None:
        """Let the next question take the place of the last one and its answers; until then, they stay.

        A question that waits for the model goes on waiting, and isn't answered before `send` or `keep`.

        Returns:
            The question; None where there is none, or an answer is under way.
        """
        if self.status.busy or not self._dialogue.has_question:
            return None
        if self._replaced:
            self._wait_no_more()
        self._set(editing=True)
        return self._dialogue.last_question

    def keep(self) -> None:
        """Leave the last question as it is, after `edit`."""
        self._set(editing=False)
        self._answer_if_waiting()

    async def stop(self) -> None:
        """End the running answer; what there is of it stays. A second call doesn't wait for the engine."""
        turn, answering = self._turn, self._answering
        if turn is None or answering is None or answering.done():
            return
        if self.status.state is State.STOPPING:
            answering.cancel()
        else:
            self._set(state=State.STOPPING)
            turn.cancel()
            await asyncio.wait({answering}, timeout=STOP_PATIENCE_S)
            answering.cancel()
        await asyncio.wait({answering})

    def _go_on(self) -> None:
        self._waiting = True
        if self.status.state is State.UNAVAILABLE:
            self.start()
        self._answer_if_waiting()

    def _wait_no_more(self) -> None:
        """The last question is not answered again: what was there of an answer is better than none."""
        self._waiting = False
        replaced, self._replaced = self._replaced, ()
        self._dialogue.put_back(replaced)
        self._dialogue.show_context_in_use()

    def _forget_waiting(self) -> None:
        """Nothing waits, and nothing is edited: the question is gone, or another conversation is shown."""
        self._waiting = False
        self._replaced = ()
        self._set(editing=False)

    def _answer_if_waiting(self) -> None:
        if self._waiting and self.status.state is State.IDLE and not self.status.editing:
            self._waiting = False
            replaced, self._replaced = self._replaced, ()
            prompt = build_prompt(self.entries, self.system_prompt)
            request = build_request(prompt, self.options, self._dialogue.key, self._dialogue.unseen)
            running = self.engine.generate(request)
            answer = Answer(running, self._clock(), prompt, request.sampling.seed, replaced)
            self._turn = Turn(answer, self._dialogue, self._announcer, self._clock)
            self._set(state=State.PREFILLING, progress=None, tokens_per_s=None, ttft_s=None, speculation=None)
            self._answering = asyncio.create_task(self._run(self._turn), name="answer")

    async def _run(self, turn: Turn) -> None:
        await turn.run()
        self._turn = None
        self._rest()
        turn.report()

    # --- conversations

    async def new(self) -> None:
        """Begin a conversation; the one that was shown stays in the list."""
        await self.stop()
        self._forget_waiting()
        self._dialogue.begin(self.options.system_prompt)

    async def resume(self, conversation_id: int) -> None:
        """Go on with a saved conversation.

        Raises:
            ConversationGone: it was deleted meanwhile.
            ConversationOpen: another app goes on with it.
            HistoryError: it can't be read.
        """
        conversation = self.store.get(conversation_id)
        self._dialogue.claim(conversation)
        messages = self.store.messages(conversation_id)
        await self.stop()
        self._forget_waiting()
        self._dialogue.open(conversation, messages)

    async def delete(self, conversation_id: int) -> None:
        """Delete a saved conversation; if it is the one shown, a new one begins.

        Raises:
            ConversationOpen: another app goes on with it.
            HistoryError: the store can't be written.
        """
        if self.conversation_id == conversation_id:
            await self.new()
        try:
            conversation = self.store.get(conversation_id)
        except ConversationGone:
            return
        self._dialogue.delete(conversation)
        self.engine.forget(engine_key(conversation))

    def check_deletable(self, conversation: Conversation) -> None:
        """Refuse what `delete` would, before the person is asked.

        Raises:
            ConversationOpen: another app goes on with it.
        """
        self._dialogue.check_deletable(conversation)

    def set_system_prompt(self, text: str) -> None:
        """Change this conversation's system prompt, from the next question on; "" leaves it to the model."""
        self._dialogue.set_system_prompt(text)

    # --- inside

    def _rest(self) -> None:
        """Enter the state in which nothing is under way."""
        self._set(state=_AT_REST[self._engine_state], progress=None)

    def _set(self, **changes: object) -> None:
        self._announcer.set(**changes)
