"""Full-text search over the messages with SQLite's FTS5, or without it where it is not built in.

The index is kept by triggers. Where FTS5 is missing the triggers are dropped, for they would fail; an
edgechat that has FTS5 finds them missing and builds the index anew.
"""

import re
import sqlite3

_TRIGGERS = {
    "messages_index_insert": """
        CREATE TRIGGER messages_index_insert AFTER INSERT ON messages BEGIN
            INSERT INTO messages_index (rowid, content) VALUES (new.id, new.content);
        END
    """,
    "messages_index_delete": """
        CREATE TRIGGER messages_index_delete AFTER DELETE ON messages BEGIN
            INSERT INTO messages_index (messages_index, rowid, content)
            VALUES ('delete', old.id, old.content);
        END
    """,
    "messages_index_update": """
        CREATE TRIGGER messages_index_update AFTER UPDATE OF content ON messages BEGIN
            INSERT INTO messages_index (messages_index, rowid, content)
            VALUES ('delete', old.id, old.content);
            INSERT INTO messages_index (rowid, content) VALUES (new.id, new.content);
        END
    """,
}


def has_fts5(db: sqlite3.Connection) -> bool:
    """Whether this SQLite can do full-text search."""
    (available,) = db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()
    return bool(available)


def ensure_index(db: sqlite3.Connection, *, available: bool) -> None:
    """Make the index fit what this SQLite can do; quick where it already does."""
    names = {
        name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'messages_index%'")
    }
    current = names >= set(_TRIGGERS)
    if available == current and (available or not names & set(_TRIGGERS)):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for name in _TRIGGERS:
            db.execute(f"DROP TRIGGER IF EXISTS {name}")
        if available:
            db.execute(
                "CREATE VIRTUAL TABLE IF NOT EXISTS messages_index USING fts5 "
                "(content, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2')"
            )
            for statement in _TRIGGERS.values():
                db.execute(statement)
            db.execute("INSERT INTO messages_index (messages_index) VALUES ('rebuild')")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def drop_deleted(db: sqlite3.Connection) -> None:
    """Take the words of messages that were deleted out of the index, which only marks them at first."""
    db.execute("INSERT INTO messages_index (messages_index) VALUES ('optimize')")


def match_expression(text: str) -> str:
    """An FTS5 query for messages with every word of `text`, the last one perhaps unfinished; "" for none.

    The words are quoted: what a person types is never FTS5's own syntax.
    """
    words = re.findall(r"\w+", text)
    return " ".join(f'"{word}"' for word in words[:-1]) + (f' "{words[-1]}"*' if words else "")


def like_pattern(text: str) -> str:
    """A LIKE pattern, with backslash as the escape, for texts that contain `text`."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
