"""The saved conversations: one SQLite database, which several apps may use at once."""

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from edgechat.history.database import Database
from edgechat.history.errors import ConversationGone
from edgechat.history.index import drop_deleted
from edgechat.history.records import Conversation, Found, Receipt, SavedMessage, Status
from edgechat.history.search import COLUMNS, find
from edgechat.records import Timings
from models.chat import Role

_MESSAGE = "id, conversation_id, role, content, status, model, created, n_tokens, n_context, timings, receipt"


class HistoryStore:
    """Conversations and messages. Every method may be called from any thread; each is one transaction, or
    all of them together are, in `together`."""

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float] = time.time, copy_of: Path | None = None
    ) -> None:
        """Open the database, and make or upgrade it.

        Args:
            path: the file; None keeps everything in memory, for as long as the app runs.
            clock: seconds since the epoch.
            copy_of: of a store in memory, the file that it begins with; that is only read.

        Raises:
            DamagedHistory: the file is no database of ours.
            NewerHistory: a newer edgechat made it.
            HistoryError: it can't be opened.
        """
        self.path = path
        self._clock = clock
        self._database = Database(path, copy_of=copy_of)

    def close(self) -> None:
        """Close the database; more than once does no harm."""
        self._database.close()

    def together(self) -> AbstractContextManager[object]:
        """Make all that is written inside one transaction: whole, or where anything raises, not at all.

        Raises:
            HistoryError: it can't be written.
        """
        return self._database.transaction()

    # --- conversations

    def create(
        self, title: str, model: str, system_prompt: str | None, *, model_path: str = ""
    ) -> Conversation:
        """A new conversation, without messages."""
        now = self._clock()
        with self._database.transaction() as db:
            cursor = db.execute(
                "INSERT INTO conversations "
                "(title, model, system_prompt, no_system, created, updated, model_path) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (title, model, system_prompt or "", system_prompt == "", now, now, model_path),
            )
            assert cursor.lastrowid is not None
            return Conversation(
                cursor.lastrowid, title, model, system_prompt, now, now, model_path=model_path
            )

    def get(self, conversation_id: int) -> Conversation:
        """One conversation.

        Raises:
            ConversationGone: there is none.
        """
        with self._database.snapshot() as db:
            row = db.execute(
                f"SELECT {COLUMNS} FROM conversations c WHERE c.id = ?", (conversation_id,)
            ).fetchone()
        if row is None:
            raise ConversationGone(
                f"there is no conversation {conversation_id} (any more): Ctrl+O in the chat lists all"
            )
        return Conversation(*row)

    def latest(self) -> Conversation | None:
        """The conversation that was used last."""
        found = self.search("", limit=1)
        return found[0].conversation if found else None

    def update(
        self,
        conversation_id: int,
        *,
        title: str | None = None,
        model: str | None = None,
        unseen_until: int | None = None,
        summary: str | None = None,
    ) -> None:
        """Change what is given; the rest stays.

        Raises:
            ConversationGone: there is none.
        """
        with self._database.transaction() as db:
            cursor = db.execute(
                "UPDATE conversations SET title = coalesce(?, title), model = coalesce(?, model), "
                "unseen_until = coalesce(?, unseen_until), "
                "summary = coalesce(?, summary), updated = ? WHERE id = ?",
                (title, model, unseen_until, summary, self._clock(), conversation_id),
            )
            _expect_row(cursor, conversation_id)

    def set_system_prompt(self, conversation_id: int, text: str | None) -> None:
        """Change a conversation's system prompt; None for the model's own, "" for none at all.

        Raises:
            ConversationGone: there is none.
        """
        with self._database.transaction() as db:
            cursor = db.execute(
                "UPDATE conversations SET system_prompt = ?, no_system = ?, updated = ? WHERE id = ?",
                (text or "", text == "", self._clock(), conversation_id),
            )
            _expect_row(cursor, conversation_id)

    def delete(self, conversation_id: int) -> None:
        """Delete a conversation with all its messages, of which no file keeps a word; none of that id is no
        error."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
            if self._database.full_text:
                drop_deleted(db)
        self._database.empty_log()

    def search(self, text: str, *, limit: int = 200) -> list[Found]:
        """Conversations with all words of `text` in one message, or with it in the title; newest first.

        Args:
            text: "" finds all.
            limit: at most so many.
        """
        with self._database.snapshot() as db:
            return find(db, text, limit, full_text=self._database.full_text)

    # --- messages

    def messages(self, conversation_id: int) -> list[SavedMessage]:
        """The messages of a conversation, oldest first, without those that were regenerated."""
        with self._database.snapshot() as db:
            rows = db.execute(
                f"SELECT {_MESSAGE} FROM messages WHERE conversation_id = ? AND NOT superseded ORDER BY id",
                (conversation_id,),
            ).fetchall()
        return [_message(row) for row in rows]

    def recent_questions(self, limit: int = 200) -> list[str]:
        """What the person asked last, in all conversations; oldest first, each text once."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT content FROM messages WHERE role = 'user' AND NOT superseded "
                "GROUP BY content ORDER BY max(id) DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [content for (content,) in reversed(rows)]

    def add(
        self, conversation_id: int, role: Role, content: str, *, status: Status, model: str = ""
    ) -> SavedMessage:
        """Append a message.

        Raises:
            ConversationGone: the conversation was deleted.
        """
        now = self._clock()
        with self._database.transaction() as db:
            _expect_row(
                db.execute("UPDATE conversations SET updated = ? WHERE id = ?", (now, conversation_id)),
                conversation_id,
            )
            cursor = db.execute(
                "INSERT INTO messages (conversation_id, role, content, status, model, created) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (conversation_id, role, content, status, model, now),
            )
            assert cursor.lastrowid is not None
            return SavedMessage(cursor.lastrowid, conversation_id, role, content, status, model, now)

    def write(
        self,
        message_id: int,
        content: str,
        *,
        status: Status = Status.PARTIAL,
        n_tokens: int = 0,
        n_context: int = 0,
        timings: Timings | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Replace what is known of a message: called again and again while an answer streams.

        Raises:
            ConversationGone: the message was deleted, with its conversation.
        """
        with self._database.transaction() as db:
            cursor = db.execute(
                "UPDATE messages SET content = ?, status = ?, n_tokens = ?, n_context = ?, timings = ?, "
                "receipt = ? WHERE id = ?",
                (
                    content,
                    status,
                    n_tokens,
                    n_context,
                    _as_json(timings),
                    _as_json(receipt),
                    message_id,
                ),
            )
            _expect_row(cursor, message_id)

    def supersede(self, message_ids: Iterable[int], *, superseded: bool = True) -> None:
        """Hide messages that newer ones take the place of, or show them again. Gone ones are no error."""
        with self._database.transaction() as db:
            db.executemany(
                "UPDATE messages SET superseded = ? WHERE id = ?", [(superseded, id_) for id_ in message_ids]
            )

    def withdraw(self, message_id: int) -> bool:
        """Delete a message, and its conversation where that has no other. One that is gone is no error.

        Returns:
            Whether the conversation was deleted, too.
        """
        with self._database.transaction() as db:
            row = db.execute("SELECT conversation_id FROM messages WHERE id = ?", (message_id,)).fetchone()
            db.execute("DELETE FROM messages WHERE id = ?", (message_id,))
            cursor = db.execute(
                "DELETE FROM conversations WHERE id = ? AND id NOT IN (SELECT conversation_id FROM messages)",
                row or (0,),
            )
            return cursor.rowcount > 0


def _expect_row(cursor: sqlite3.Cursor, number: int) -> None:
    if cursor.rowcount == 0:
        raise ConversationGone(f"number {number} is not there any more: another edgechat deleted it")


def _as_json(record: msgspec.Struct | None) -> str | None:
    return None if record is None else msgspec.json.encode(record).decode()


def _message(row: tuple[object, ...]) -> SavedMessage:
    values = dict(zip(SavedMessage.__struct_fields__, row, strict=True))
    values["timings"] = _from_json(values["timings"], Timings)
    values["receipt"] = _from_json(values["receipt"], Receipt)
    return msgspec.convert(values, SavedMessage)


def _from_json(text: object, kind: type[msgspec.Struct]) -> msgspec.Struct | None:
    """What `_as_json` wrote; None where that can't be read: the message can."""
    try:
        return msgspec.json.decode(text, type=kind) if isinstance(text, str) else None
    except (msgspec.DecodeError, RecursionError):
        return None
