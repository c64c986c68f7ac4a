"""The saved conversations: one SQLite database, which several apps may use at once."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from edgechat.history.errors import ConversationGone, DamagedHistory, HistoryError
from edgechat.history.index import ensure_index, has_fts5, like_pattern, match_expression
from edgechat.history.migrations import migrate
from edgechat.history.records import Conversation, Found, Receipt, SavedMessage, Status
from edgechat.records import Timings
from models.chat import Role

BUSY_TIMEOUT_S = 5.0
"""How long a write waits for another app's."""
CHECKED_SIZE = 32 * 2**20
"""A database up to this many bytes is checked whole when it is opened."""

_CONVERSATION = """
    c.id, c.title, c.model, c.system_prompt, c.created, c.updated,
    (SELECT count(*) FROM messages WHERE conversation_id = c.id AND NOT superseded),
    c.unseen_until, c.model_path
"""
_MESSAGE = "id, conversation_id, role, content, status, model, created, n_tokens, n_context, timings, receipt"


class HistoryStore:
    """Conversations and messages. Every method may be called from any thread; each is one transaction."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Open the database, and make or upgrade it.

        Args:
            path: the file; None keeps everything in memory, for as long as the app runs.
            clock: seconds since the epoch.

        Raises:
            DamagedHistory: the file is no database of ours.
            HistoryError: it can't be opened, or a newer edgechat made it.
        """
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        with self._errors():
            self._db = _connect(path)
        try:
            with self._errors():
                _prepare(self._db, path)
                self.full_text = has_fts5(self._db)
                ensure_index(self._db, available=self.full_text)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database; more than once does no harm."""
        with self._lock:
            self._db.close()

    # --- conversations

    def create(self, title: str, model: str, system_prompt: str, *, model_path: str = "") -> Conversation:
        """A new conversation, without messages."""
        now = self._clock()
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO conversations (title, model, system_prompt, created, updated, model_path) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (title, model, system_prompt, now, now, model_path),
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
        with self._snapshot() as db:
            row = db.execute(
                f"SELECT {_CONVERSATION} FROM conversations c WHERE c.id = ?", (conversation_id,)
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
        system_prompt: str | None = None,
        unseen_until: int | None = None,
    ) -> None:
        """Change what is given; the rest stays.

        Raises:
            ConversationGone: there is none.
        """
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE conversations SET title = coalesce(?, title), model = coalesce(?, model), "
                "system_prompt = coalesce(?, system_prompt), unseen_until = coalesce(?, unseen_until), "
                "updated = ? WHERE id = ?",
                (title, model, system_prompt, unseen_until, self._clock(), conversation_id),
            )
            _expect_row(cursor, conversation_id)

    def delete(self, conversation_id: int) -> None:
        """Delete a conversation with all its messages; none of that id is no error."""
        with self._transaction() as db:
            db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))

    def search(self, text: str, *, limit: int = 200) -> list[Found]:
        """Conversations with all words of `text` in one message, or with it in the title; newest first.

        Args:
            text: "" finds all.
            limit: at most so many.
        """
        text = text.strip()
        with self._snapshot() as db:
            if not text:
                rows = db.execute(
                    f"SELECT {_CONVERSATION} FROM conversations c ORDER BY c.updated DESC, c.id DESC LIMIT ?",
                    (limit,),
                )
                return [Found(Conversation(*row)) for row in rows]
            excerpts = self._excerpts(db, text)
            everything = db.execute(
                f"SELECT {_CONVERSATION} FROM conversations c ORDER BY c.updated DESC, c.id DESC"
            ).fetchall()
        lowered = text.lower()
        found = [Found(Conversation(*row), excerpts.get(row[0], "")) for row in everything]
        return [
            one
            for one in found
            if one.conversation.id in excerpts or lowered in one.conversation.title.lower()
        ][:limit]

    def _excerpts(self, db: sqlite3.Connection, text: str) -> dict[int, str]:
        """An excerpt of the newest matching message of each conversation."""
        expression = match_expression(text) if self.full_text else ""
        rows: list[tuple[int, str]] = []
        if expression:
            rows = db.execute(
                "SELECT m.conversation_id, snippet(messages_index, 0, '', '', '…', 12) "
                "FROM messages_index JOIN messages m ON m.id = messages_index.rowid "
                "WHERE messages_index MATCH ? AND NOT m.superseded ORDER BY m.id",
                (expression,),
            ).fetchall()
        if not rows:  # no FTS5, or a piece of a word, or a script that writes no spaces
            words = text.split()
            matches = db.execute(
                "SELECT conversation_id, content FROM messages WHERE NOT superseded "
                + r"AND content LIKE ? ESCAPE '\' " * len(words)
                + "ORDER BY id",
                [like_pattern(word) for word in words],
            )
            rows = [(conversation, _around(content, words[0])) for conversation, content in matches]
        return dict(rows)

    # --- messages

    def messages(self, conversation_id: int) -> list[SavedMessage]:
        """The messages of a conversation, oldest first, without those that were regenerated."""
        with self._snapshot() as db:
            rows = db.execute(
                f"SELECT {_MESSAGE} FROM messages WHERE conversation_id = ? AND NOT superseded ORDER BY id",
                (conversation_id,),
            ).fetchall()
        return [_message(row) for row in rows]

    def recent_questions(self, limit: int = 200) -> list[str]:
        """What the person asked last, in all conversations; oldest first, each text once."""
        with self._snapshot() as db:
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
        with self._transaction() as db:
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
        with self._transaction() as db:
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

    def supersede(self, message_id: int) -> None:
        """Hide a message: a newer answer takes its place. One that is gone is no error."""
        with self._transaction() as db:
            db.execute("UPDATE messages SET superseded = 1 WHERE id = ?", (message_id,))

    # --- inside

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """One write, whole or not at all; IMMEDIATE waits for another app's before it reads anything."""
        with self._lock, self._errors():
            self._db.execute(begin)
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        """Reads that see one state of the database."""
        return self._transaction("BEGIN")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as ours: one line with what to do."""
        where = "the conversations" if self.path is None else str(self.path)
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError, OSError) as error:
            hint = "check that the disk has room and the folder can be written"
            if "locked" in str(error):
                hint = "another edgechat holds it: close it and try again"
            raise HistoryError(f"{where} can't be used ({error}): {hint}") from error
        except sqlite3.DatabaseError as error:
            raise DamagedHistory(f"{where} is damaged ({error})") from error


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made before SQLite sees it, so that at no moment others can read it; -wal and -shm follow its mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600))
    return sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # transactions begin where we say so
        check_same_thread=False,
    )


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    _write_ahead(db)
    # With WAL, NORMAL survives the process's death at any moment; a power cut may cost the last turns.
    db.execute("PRAGMA synchronous = NORMAL")
    if path is not None and path.stat().st_size <= CHECKED_SIZE:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    try:
        migrate(db)
    except ValueError as error:
        raise HistoryError(f"{path} was made by a newer edgechat ({error}): update edgechat") from error


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to WAL; SQLite doesn't wait here for another app that does the same."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _expect_row(cursor: sqlite3.Cursor, number: int) -> None:
    if cursor.rowcount == 0:
        raise ConversationGone(f"number {number} is not there any more: another edgechat deleted it")


def _as_json(record: msgspec.Struct | None) -> str | None:
    return None if record is None else msgspec.json.encode(record).decode()


def _message(row: tuple[object, ...]) -> SavedMessage:
    values = dict(zip(SavedMessage.__struct_fields__, row, strict=True))
    for name in ("timings", "receipt"):
        record = values[name]
        if isinstance(record, str):
            values[name] = msgspec.json.decode(record)
    return msgspec.convert(values, SavedMessage)


def _around(content: str, text: str, reach: int = 40) -> str:
    """The part of `content` around the first `text`, on one line."""
    at = max(content.lower().find(text.lower()), 0)
    start, stop = max(at - reach, 0), at + len(text) + reach
    middle = " ".join(content[start:stop].split())
    return ("…" if start else "") + middle + ("…" if stop < len(content) else "")
