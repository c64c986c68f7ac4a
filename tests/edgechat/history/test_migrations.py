"""A database that an older edgechat made."""

import sqlite3
from pathlib import Path

from edgechat.history import HistoryStore, Receipt, Status
from edgechat.history.migrations import m001_conversations
from edgechat.records import Speculation


def test_the_first_version_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    db = sqlite3.connect(path)
    m001_conversations(db)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO conversations VALUES (3, 'Tides', 'starter', '', 1.0, 2.0)")
    db.execute(
        "INSERT INTO messages (conversation_id, role, content, status, model, created) "
        "VALUES (3, 'user', 'Why?', 'complete', '', 1.0)"
    )
    db.commit()
    db.close()
    store = HistoryStore(path)
    assert (store.get(3).title, store.get(3).unseen_until) == ("Tides", 0)
    assert store.get(3).system_prompt is None  # the model's own, as it was
    (question,) = store.messages(3)
    assert (question.content, question.receipt) == ("Why?", None)

    receipt = Receipt(2**64 - 1, 12, 900, Speculation(12, 44, 34, 32, 3.5, 1.75, 1.5, "off"))
    answer = store.add(3, "assistant", "", status=Status.PARTIAL)
    store.write(answer.id, "The Moon.", status=Status.COMPLETE, receipt=receipt)
    store.update(3, unseen_until=question.id)
    store.close()
    again = HistoryStore(path)
    assert again.messages(3)[1].receipt == receipt
    assert again.get(3).unseen_until == question.id
    again.close()
