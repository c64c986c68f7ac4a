"""Saving a conversation as it goes on, so that whatever dies, at most the last second is lost."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from edgechat.chat.entries import Entry, Kind, title_of
from edgechat.history import Conversation, ConversationGone, HistoryError, HistoryStore, Status
from edgechat.history.claims import Claims
from edgechat.history.errors import ConversationOpen
from models.chat import Role

INTERVAL_S = 0.4
"""A streaming answer is written this often."""

Said = Callable[[], tuple[str, int]]
"""What there is of a streaming answer at this moment: its text, and the tokens of context in use."""


class Recorder:
    """Writes one conversation at a time to the store.

    A conversation gets its row with its first message. Where another program deleted it meanwhile, all of it
    is saved anew, and `on_trouble` hears of that. Where nothing can be saved, the chat goes on and
    `on_trouble` hears of it, once, and of the first message that can be saved again.
    """

    def __init__(self, store: HistoryStore, on_trouble: Callable[[str], None], model_path: str = "") -> None:
        self.store = store
        self._model_path = model_path
        self.conversation: Conversation | None = None
        self._on_trouble = on_trouble
        self._troubled = False
        self._writing: asyncio.Task[None] | None = None
        self._said: Said = lambda: ("", 0)
        self._hidden: set[int] = set()  # replaced messages that the store still shows
        self._claims = Claims(None if store.path is None else store.path.with_name("open.lock"))

    def forget(self) -> None:
        """Begin a new conversation with the next message."""
        self.conversation = None
        self._hidden.clear()
        self._claims.release()

    def resume(self, conversation: Conversation) -> None:
        """Go on with a saved conversation, which was claimed."""
        self.conversation = conversation
        self._hidden.clear()

    def claim(self, conversation: Conversation) -> None:
        """Keep other apps from going on with a saved conversation.

        Raises:
            ConversationOpen: another app goes on with it; nothing has changed.
        """
        if not self._claims.claim(conversation.id):
            title = conversation.title or "This conversation"
            raise ConversationOpen(f"“{title}” is open in another window: go on there, or close that first")

    def delete(self, conversation: Conversation) -> None:
        """Delete a saved conversation, unless another app goes on with it.

        Raises:
            ConversationOpen: another app does; nothing has changed.
            HistoryError: the store can't be written.
        """
        with self._alone(conversation):
            self.store.delete(conversation.id)

    def check_deletable(self, conversation: Conversation) -> None:
        """Refuse what `delete` would.

        Raises:
            ConversationOpen: another app goes on with it.
        """
        with self._alone(conversation):
            pass

    @contextlib.contextmanager
    def _alone(self, conversation: Conversation) -> Iterator[None]:
        with self._claims.alone(conversation.id) as mine:
            if not mine:
                title = conversation.title or "This conversation"
                raise ConversationOpen(f"“{title}” is open in another window: close it there, then delete it")
            yield

    def close(self) -> None:
        """Let other apps go on with the conversation."""
        self._claims.close()

    def add(
        self,
        entry: Entry,
        before: Iterable[Entry],
        model: str,
        system_prompt: str | None,
        *,
        replaced: Iterable[Entry] = (),
        title: str | None = None,
    ) -> list[Entry]:
        """Append a message, and hide those that it takes the place of: all of that, or nothing.

        Args:
            entry: the message.
            before: all entries that came before it, for the case that they aren't saved yet.
            model: the conversation's model.
            system_prompt: the conversation's system prompt.
            replaced: what it takes the place of.
            title: the conversation's from now on; None: as it was.

        Returns:
            The entries whose `saved_id` changed; the new one is the last.
        """
        self._hidden |= {e.saved_id for e in replaced if e.saved_id is not None}
        entries = [e for e in (*before, entry) if e.kind is not Kind.NOTICE]
        try:
            if self.conversation is not None:
                missing = [e for e in entries if e.saved_id is None]
                try:
                    return self._done(self._add(self.conversation, missing, title))
                except ConversationGone:
                    self._gone()
            with self.store.together():
                conversation = self.store.create(
                    title_of(entries[0].text), model, system_prompt, model_path=self._model_path
                )
                saved = self._add(conversation, entries, None)
            self.conversation = conversation
            self._claims.claim(conversation.id)
            return self._done(saved)
        except HistoryError as error:
            self._report(error)
            return [entry]

    def begin_answer(self, entry: Entry, said: Said) -> None:
        """Write a streaming answer every INTERVAL_S, until `end_answer`.

        Args:
            entry: the answer, as `add` gave it.
            said: what there is of it.
        """
        self._said = said
        if entry.saved_id is not None:
            self._writing = asyncio.create_task(self._keep_writing(entry.saved_id), name="save the answer")

    async def end_answer(
        self, entry: Entry, before: Iterable[Entry], model: str, system: str | None
    ) -> list[Entry]:
        """Write an answer for the last time.

        Returns:
            As `add`.
        """
        if self._writing is not None:
            self._writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writing
            self._writing = None
        return self.write(entry, before, model, system)

    def write(self, entry: Entry, before: Iterable[Entry], model: str, system: str | None) -> list[Entry]:
        """Write an answer as it is; what `end_answer` does, at once."""
        if entry.saved_id is None:
            return self.add(entry, before, model, system)
        try:
            self._write_out(entry.saved_id, entry)
        except ConversationGone:
            self._gone()
            return self.add(entry, before, model, system)
        except HistoryError as error:
            self._report(error)
        return [entry]

    def withdraw(self, entry: Entry, back: Iterable[Entry], title: str) -> None:
        """Delete a message, and show those again that it took the place of: all of that, or nothing.

        Args:
            entry: the message; where it was the only one, the conversation goes with it.
            back: what it took the place of.
            title: the conversation's from now on.
        """
        shown = {e.saved_id for e in back if e.saved_id is not None}
        self._hidden -= shown
        if self.conversation is None or entry.saved_id is None:
            return
        with self._reporting(), contextlib.suppress(ConversationGone):
            with self.store.together():
                self.store.supersede(shown, superseded=False)
                gone = self.store.withdraw(entry.saved_id)
                if not gone:
                    self.store.update(self.conversation.id, title=title)
            if gone:
                self.forget()
            else:
                self.conversation = msgspec.structs.replace(self.conversation, title=title)

    def set_system_prompt(self, text: str | None) -> None:
        """Save a changed system prompt, where the conversation is saved at all."""
        if self.conversation is not None:
            with self._reporting(), contextlib.suppress(ConversationGone):
                self.store.set_system_prompt(self.conversation.id, text)

    def set_unseen(self, entry: Entry | None, summary: str = "") -> None:
        """Save which message is the last that the model no longer sees, and what it wrote of those; None: it
        sees all."""
        if self.conversation is not None:
            number = 0 if entry is None or entry.saved_id is None else entry.saved_id
            with self._reporting(), contextlib.suppress(ConversationGone):
                self.store.update(self.conversation.id, unseen_until=number, summary=summary)

    def _gone(self) -> None:
        self.conversation = None
        self._hidden.clear()
        self._on_trouble("This conversation was deleted elsewhere while it was open: it is saved anew.")

    def _add(self, conversation: Conversation, entries: Iterable[Entry], title: str | None) -> list[Entry]:
        """Append messages, and hide what is to be hidden, in one transaction.

        Raises:
            ConversationGone: the conversation was deleted; nothing has changed.
            HistoryError: the store can't be written; nothing has changed.
        """
        with self.store.together():
            self.store.supersede(self._hidden)
            saved = [self._insert(conversation, entry) for entry in entries]
            if title is not None:
                self.store.update(conversation.id, title=title)
        self._hidden.clear()
        if title is not None:
            self.conversation = msgspec.structs.replace(conversation, title=title)
        return saved

    def _insert(self, conversation: Conversation, entry: Entry) -> Entry:
        role: Role = "user" if entry.kind is Kind.USER else "assistant"
        saved = self.store.add(conversation.id, role, entry.text, status=entry.status, model=entry.model)
        entry = replace(entry, saved_id=saved.id)
        if entry.kind is Kind.ASSISTANT and entry.status is not Status.PARTIAL:
            self._write_out(saved.id, entry)
        return entry

    def _write_out(self, message_id: int, entry: Entry) -> None:
        """All that is known of an answer."""
        self.store.write(
            message_id,
            entry.text,
            status=entry.status,
            n_tokens=entry.n_tokens,
            n_context=entry.n_context,
            timings=entry.timings,
            receipt=entry.receipt,
        )

    async def _keep_writing(self, message_id: int) -> None:
        written = ""
        while True:
            await asyncio.sleep(INTERVAL_S)
            text, n_context = self._said()
            if text == written:
                continue
            # In a thread: a disk that is slow must not hold up the interface. Shielded, so that the
            # last write of `end_answer` never overtakes this one.
            write = asyncio.ensure_future(
                asyncio.to_thread(self.store.write, message_id, text, n_context=n_context)
            )
            try:
                await asyncio.shield(write)
                written = text
            except asyncio.CancelledError:
                with contextlib.suppress(HistoryError, ConversationGone):
                    await write
                raise
            except ConversationGone:
                return  # the last write saves everything anew
            except HistoryError as error:
                self._report(error)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except HistoryError as error:
            self._report(error)

    def _done(self, saved: list[Entry]) -> list[Entry]:
        """What was saved, told where that could not be taken for granted."""
        if self._troubled:
            self._troubled = False
            self._on_trouble("Saving works again.")
        return saved

    def _report(self, error: HistoryError) -> None:
        if not self._troubled:
            self._troubled = True
            self._on_trouble(f"{error}. What follows may not be saved.")
