"""The conversation that is shown: its messages, how much of it the model sees, and its place in the store."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from edgechat.chat.announcer import Announcer
from edgechat.chat.entries import Entry, Kind, Severity, from_saved, title_of
from edgechat.chat.events import Added, Changed, Removed, Reset, Unseen
from edgechat.chat.options import ChatOptions
from edgechat.chat.saving import Recorder, Said
from edgechat.history import Conversation, HistoryStore, SavedMessage, Status


def engine_key(conversation: Conversation) -> str:
    """The name under which the engine keeps a conversation, the same in every run and never used again."""
    return f"chat-{conversation.id}-{conversation.created!r}"


@dataclass(frozen=True, slots=True)
class Replaced:
    """A question and its answers, out of sight since another question took their place."""

    entries: tuple[Entry, ...]
    unseen: Unseen
    title: str


class Dialogue:
    """Entries in their order; whatever becomes of them is told, and saved where it is part of the talk."""

    def __init__(self, store: HistoryStore, options: ChatOptions, announcer: Announcer) -> None:
        self.entries: list[Entry] = []
        self.system_prompt = options.system_prompt
        self.growing: Entry | None = None
        """The answer that is under way, from its first word on."""
        self._announcer = announcer
        self._model = options.model
        self._recorder = Recorder(store, lambda text: self.notice(text, Severity.WARNING), options.model_path)
        self._keys = itertools.count(1)
        self._noted: set[str] = set()
        self._unseen = Unseen(None)
        # By questions that have no word of an answer yet, the newest last.
        self._replaced: list[Replaced] = []

    # --- which conversation

    @property
    def conversation_id(self) -> int | None:
        """Its number in the database; None before its first message."""
        conversation = self._recorder.conversation
        return None if conversation is None else conversation.id

    @property
    def key(self) -> str:
        """The name under which the engine keeps it; none where it isn't saved."""
        conversation = self._recorder.conversation
        return "" if conversation is None else engine_key(conversation)

    def claim(self, conversation: Conversation) -> None:
        """Keep other apps from a saved conversation.

        Raises:
            ConversationOpen: another app goes on with it; nothing has changed.
        """
        self._recorder.claim(conversation)

    def delete(self, conversation: Conversation) -> None:
        """Delete a saved conversation.

        Raises:
            ConversationOpen: another app goes on with it; nothing has changed.
            HistoryError: the store can't be written.
        """
        self._recorder.delete(conversation)

    def check_deletable(self, conversation: Conversation) -> None:
        """Refuse what `delete` would.

        Raises:
            ConversationOpen: another app goes on with it.
        """
        self._recorder.check_deletable(conversation)

    def begin(self, system_prompt: str | None) -> None:
        """Show a new conversation; the one that was shown stays in the store."""
        self._recorder.forget()
        self._show([], system_prompt, "")

    def open(self, conversation: Conversation, messages: Iterable[SavedMessage]) -> None:
        """Show a saved conversation, which was claimed."""
        entries = [from_saved(next(self._keys), m) for m in messages if m.role != "system"]
        if entries:
            self._recorder.resume(conversation)
        else:
            self._recorder.forget()
        self._show(entries, conversation.system_prompt, conversation.title)
        unseen = [e.key for e in entries if (e.saved_id or 0) <= conversation.unseen_until]
        self._show_unseen(unseen[-1] if unseen else None, conversation.summary)
        if entries and conversation.model not in ("", self._model):
            self.notice(f"This began with {conversation.model}; from here on {self._model} answers.")

    def close(self) -> None:
        """Let other apps go on with it."""
        self._recorder.close()

    def set_system_prompt(self, text: str) -> None:
        """Change the system prompt, from the next question on; an empty one leaves it to the model."""
        text = text.strip()
        if text == (self.system_prompt or ""):
            return
        self.system_prompt = text or None
        self._recorder.set_system_prompt(self.system_prompt)
        if self.entries:
            self.notice("System prompt changed." if text else "System prompt removed.")

    # --- questions

    @property
    def has_question(self) -> bool:
        """Whether the person has asked anything."""
        return any(entry.kind is Kind.USER for entry in self.entries)

    @property
    def last_question(self) -> str | None:
        """What the person asked last."""
        return next((e.text for e in reversed(self.entries) if e.kind is Kind.USER), None)

    def ask(self, text: str) -> None:
        """Append a question; the first one is the title."""
        self._replaced.clear()
        self._ask(text)

    def ask_instead(self, text: str) -> None:
        """Ask in place of the last question and its answers, which `withdraw` brings back."""
        unseen, title = self._unseen, self._announcer.status.title
        answers = self.drop_answers()
        old = (self._remove(-1), *answers)
        self._replaced.append(Replaced(old, unseen, title))
        self._ask(text, replaced=old)

    def withdraw(self) -> str:
        """Remove the last question, which has no answer and is not part of the conversation.

        Where it took the place of another one, that is there again, with its answers.

        Returns:
            Its text.
        """
        index = max(i for i, entry in enumerate(self.entries) if entry.kind is Kind.USER)
        question = self._remove(index)
        none = Replaced((), self._unseen, self._announcer.status.title if self.has_question else "")
        back = self._replaced.pop() if self._replaced else none
        self._recorder.withdraw(question, back.entries, back.title)
        self._announcer.set(title=back.title)
        self.put_back(back.entries)
        self.set_unseen(back.unseen.key, back.unseen.summary)
        return question.text

    @property
    def replaces(self) -> bool:
        """Whether the last question took the place of another one, and has no word of an answer yet."""
        return bool(self._replaced)

    def drop_answers(self) -> tuple[Entry, ...]:
        """Take the answers and notices after the last question out of sight; the store still has them."""
        dropped: list[Entry] = []
        while self.entries[-1].kind is not Kind.USER:
            entry = self._remove(-1)
            if entry.kind is Kind.ASSISTANT:
                dropped.insert(0, entry)
        return tuple(dropped)

    def put_back(self, answers: tuple[Entry, ...]) -> None:
        """Show again what `drop_answers` dropped."""
        for entry in answers:
            self.entries.append(entry)
            self._announcer.tell(Added(entry))

    # --- answers

    def begin_answer(self, said: Said, replaced: tuple[Entry, ...] = ()) -> Entry:
        """Append an answer that grows, and save it while it does, its first words at once: what it takes the
        place of is hidden with that.

        Args:
            said: all there is of it at any moment.
            replaced: what it takes the place of; `drop_answers` dropped it.
        """
        self._replaced.clear()
        entry = Entry(next(self._keys), Kind.ASSISTANT, "", status=Status.PARTIAL, model=self._model)
        self.growing = self._append(entry, replaced, begun=said()[0])
        self._recorder.begin_answer(self.growing, said)
        return self.growing

    async def end_answer(self, ended: Entry) -> None:
        """The answer that grew is whole, or as whole as it will be."""
        saved = await self._recorder.end_answer(ended, self._before(ended), self._model, self.system_prompt)
        self.growing = None
        self._replace([*saved[:-1], replace(ended, saved_id=saved[-1].saved_id)])

    def save_answer(self, entry: Entry) -> None:
        """Save the answer as it is, at once: the app is about to end."""
        self._recorder.write(entry, self._before(entry), self._model, self.system_prompt)

    @property
    def last_answer(self) -> Entry | None:
        """The newest answer that doesn't grow any more."""
        growing = None if self.growing is None else self.growing.key
        answers = (e for e in reversed(self.entries) if e.kind is Kind.ASSISTANT)
        return next((e for e in answers if e.key != growing), None)

    def show_context_in_use(self) -> None:
        """Set the meter to what it shows between answers: of one that was cut short nobody counted it."""
        answers = (e for e in reversed(self.entries) if e.kind is Kind.ASSISTANT and e.n_context)
        last = next(answers, None)
        pinned = 0 if last is None or last.receipt is None else last.receipt.n_pinned
        self._announcer.set(n_context=0 if last is None else last.n_context, n_pinned=pinned)

    # --- what the app says, and what the model sees

    def notice(self, text: str, severity: Severity = Severity.INFORMATION) -> None:
        """Say something to the person, in the transcript."""
        entry = Entry(next(self._keys), Kind.NOTICE, text, severity=severity)
        self.entries.append(entry)
        self._announcer.tell(Added(entry))

    def note_once(self, kind: str, text: str) -> None:
        """Say something of a kind that is said once in a conversation."""
        if kind not in self._noted:
            self._noted.add(kind)
            self.notice(text)

    def set_unseen(self, key: int | None, summary: str = "") -> None:
        """The model no longer sees what is up to this entry, but a summary of it; None: it sees all."""
        before = self._unseen
        last = self._show_unseen(key, summary)
        if self._unseen != before:
            self._recorder.set_unseen(last, self._unseen.summary)

    @property
    def unseen(self) -> Unseen:
        """What the model no longer sees."""
        return self._unseen

    # --- inside

    def _show_unseen(self, key: int | None, summary: str) -> Entry | None:
        upto = [] if key is None else [e for e in self.entries if e.key <= key and e.kind is not Kind.NOTICE]
        unseen = Unseen(upto[-1].key, len(upto), summary) if upto else Unseen(None)
        if unseen != self._unseen:
            self._unseen = unseen
            self._announcer.tell(unseen)
        return upto[-1] if upto else None

    def _show(self, entries: list[Entry], system_prompt: str | None, title: str) -> None:
        self.entries = entries
        self.system_prompt = system_prompt
        self._noted.clear()
        self._replaced.clear()
        self._unseen = Unseen(None)
        self._announcer.tell(Reset(tuple(entries)))
        self._announcer.set(title=title, tokens_per_s=None, ttft_s=None, speculation=None)
        self.show_context_in_use()

    def _ask(self, text: str, replaced: tuple[Entry, ...] = ()) -> None:
        title = None if self.has_question else title_of(text)
        self._append(Entry(next(self._keys), Kind.USER, text), replaced, title)
        if title is not None:
            self._announcer.set(title=title)

    def _append(
        self, entry: Entry, replaced: tuple[Entry, ...], title: str | None = None, begun: str = ""
    ) -> Entry:
        """Show and save an entry; `begun`: what is saved of one that has no text yet."""
        saved = self._recorder.add(
            replace(entry, text=entry.text or begun),
            self.entries,
            self._model,
            self.system_prompt,
            replaced=replaced,
            title=title,
        )
        self._replace(saved[:-1])
        entry = replace(entry, saved_id=saved[-1].saved_id)
        self.entries.append(entry)
        self._announcer.tell(Added(entry))
        return entry

    def _replace(self, changed: list[Entry]) -> None:
        by_key = {entry.key: entry for entry in changed}
        for index, entry in enumerate(self.entries):
            if entry.key in by_key:
                self.entries[index] = by_key[entry.key]
                self._announcer.tell(Changed(by_key[entry.key]))

    def _remove(self, index: int) -> Entry:
        entry = self.entries.pop(index)
        self._announcer.tell(Removed(entry.key))
        if entry.key == self._unseen.key:
            self.set_unseen(next((e.key for e in reversed(self.entries) if e.kind is not Kind.NOTICE), None))
        return entry

    def _before(self, entry: Entry) -> list[Entry]:
        return list(itertools.takewhile(lambda e: e.key != entry.key, self.entries))
