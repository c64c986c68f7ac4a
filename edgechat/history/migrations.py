"""The database's history, one function a version. A function, once released, never changes."""

import sqlite3
from collections.abc import Callable


def m001_conversations(db: sqlite3.Connection) -> None:
    """Conversations and their messages.

    A regenerated answer stays, marked as superseded, so that nothing a model wrote is lost.
    """
    db.execute(
        """
        CREATE TABLE conversations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            title TEXT NOT NULL,
            model TEXT NOT NULL,
            system_prompt TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL
        )
        """
    )
    db.execute("CREATE INDEX conversations_updated ON conversations (updated DESC)")
    db.execute(
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation_id INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
            content TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('partial', 'complete', 'stopped', 'length', 'failed')),
            model TEXT NOT NULL,
            created REAL NOT NULL,
            n_tokens INTEGER NOT NULL DEFAULT 0,
            n_context INTEGER NOT NULL DEFAULT 0,
            timings TEXT,
            superseded INTEGER NOT NULL DEFAULT 0
        )
        """
    )
    db.execute("CREATE INDEX messages_conversation ON messages (conversation_id, id)")


def m002_window_and_receipts(db: sqlite3.Connection) -> None:
    """What the model no longer sees of a conversation, and how each answer came about."""
    db.execute("ALTER TABLE conversations ADD COLUMN unseen_until INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE messages ADD COLUMN receipt TEXT")


def m003_model_path(db: sqlite3.Connection) -> None:
    """Where a conversation's model lies, so that it can be gone on with."""
    db.execute("ALTER TABLE conversations ADD COLUMN model_path TEXT NOT NULL DEFAULT ''")


def m004_summary(db: sqlite3.Connection) -> None:
    """What the model wrote of the messages that it no longer sees."""
    db.execute("ALTER TABLE conversations ADD COLUMN summary TEXT NOT NULL DEFAULT ''")


def m005_no_system_prompt(db: sqlite3.Connection) -> None:
    """Whether an empty system prompt is meant as one, and not as the model's own."""
    db.execute("ALTER TABLE conversations ADD COLUMN no_system INTEGER NOT NULL DEFAULT 0")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    m001_conversations,
    m002_window_and_receipts,
    m003_model_path,
    m004_summary,
    m005_no_system_prompt,
)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database to the newest version; the version is SQLite's `user_version`.

    Two apps may do this at once: whoever comes second finds nothing left to do.

    Raises:
        ValueError: the database is of a version that a newer edgechat made.
    """
    if _version(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)
        if version > len(MIGRATIONS):
            raise ValueError(f"version {version}, this edgechat knows {len(MIGRATIONS)}")
        for number, migration in enumerate(MIGRATIONS[version:], version + 1):
            migration(db)
            db.execute(f"PRAGMA user_version = {number}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)
