"""Finding conversations by the words in them."""

import itertools
import sqlite3

from edgechat.history.index import like_pattern, match_expression
from edgechat.history.records import Conversation, Found

COLUMNS = """
    c.id, c.title, c.model,
    CASE WHEN c.no_system THEN '' ELSE nullif(c.system_prompt, '') END,
    c.created, c.updated,
    (SELECT count(*) FROM messages WHERE conversation_id = c.id AND NOT superseded),
    c.unseen_until, c.model_path, c.summary
"""
"""Of a conversation `c`, in the order of the record's fields."""
_NEWEST_FIRST = f"SELECT {COLUMNS} FROM conversations c ORDER BY c.updated DESC, c.id DESC"


def find(db: sqlite3.Connection, text: str, limit: int, *, full_text: bool) -> list[Found]:
    """Conversations with all words of `text` in one message, or with it in the title; newest first.

    Args:
        db: the database, in a transaction.
        text: "" finds all.
        limit: at most so many.
        full_text: there is an index of the messages.
    """
    text = text.strip()
    if not text:
        return [Found(Conversation(*row)) for row in db.execute(f"{_NEWEST_FIRST} LIMIT ?", (limit,))]
    excerpts = _excerpts(db, text, full_text)
    lowered = text.lower()
    found = (Found(Conversation(*row), excerpts.get(row[0], "")) for row in db.execute(_NEWEST_FIRST))
    fitting = (
        one for one in found if one.conversation.id in excerpts or lowered in one.conversation.title.lower()
    )
    return list(itertools.islice(fitting, limit))


def _excerpts(db: sqlite3.Connection, text: str, full_text: bool) -> dict[int, str]:
    """An excerpt of the newest matching message of each conversation."""
    expression = match_expression(text) if full_text else ""
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


def _around(content: str, text: str, reach: int = 40) -> str:
    """The part of `content` around the first `text`, on one line."""
    at = max(content.lower().find(text.lower()), 0)
    start, stop = max(at - reach, 0), at + len(text) + reach
    middle = " ".join(content[start:stop].split())
    return ("…" if start else "") + middle + ("…" if stop < len(content) else "")
