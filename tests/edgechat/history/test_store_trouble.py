"""Databases that are damaged, newer, or can't be written: what is kept of them, and what is said."""

import errno
import sqlite3
from pathlib import Path

import pytest

from edgechat.history import (
    DamagedHistory,
    HistoryError,
    HistoryStore,
    Status,
    open_history,
)
from edgechat.history import database as database_module
from edgechat.history.migrations import MIGRATIONS
from tests.edgechat.history.talks import raw, talk


@pytest.mark.parametrize("damage", ["garbage", "truncated", "flipped"])
def test_a_damaged_file_is_set_aside(path: Path, damage: str) -> None:
    store = HistoryStore(path)
    conversation = talk(store, "A", *(f"message {n} " * 50 for n in range(100)))
    store.close()
    good = path.read_bytes()
    bad = {
        "garbage": b"no database at all" * 100,
        "truncated": good[: len(good) // 2 // 4096 * 4096],
        "flipped": good[:100] + bytes(8000) + good[8100:],
    }[damage]
    path.write_bytes(bad)

    opened = open_history(path)
    assert "damaged" in opened.notice
    assert "\n" not in opened.notice
    (aside,) = path.parent.glob("history.damaged-*.db")
    assert aside.name in opened.notice
    assert aside.read_bytes() == bad
    assert opened.store.search("") == []
    assert talk(opened.store, "new", "hello") >= 1
    with pytest.raises(DamagedHistory):
        HistoryStore(aside)
    assert conversation == 1


def test_a_second_damaged_file_of_the_same_second_overwrites_nothing(path: Path) -> None:
    path.parent.mkdir()
    for text in ("first", "second"):
        path.write_text(text * 1000)
        open_history(path, clock=lambda: 5e8).store.close()
        path.unlink()
    assert {p.read_text()[:5] for p in path.parent.glob("*damaged*.db")} == {"first", "secon"}


def test_a_newer_database_is_left_alone(path: Path) -> None:
    HistoryStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    before = path.read_bytes()
    for said in ("hello", "again"):
        opened = open_history(path)
        assert "newer edgechat" in opened.notice
        assert f"saved in history.v{len(MIGRATIONS)}.db" in opened.notice
        assert "\n" not in opened.notice
        talk(opened.store, said, said)
        opened.store.close()
    assert path.read_bytes() == before
    assert [found.conversation.title for found in open_history(path).store.search("")] == ["again", "hello"]
    assert list(path.parent.glob("*damaged*")) == []


def test_a_newer_database_where_nothing_can_be_written(path: Path) -> None:
    HistoryStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    path.with_name(f"history.v{len(MIGRATIONS)}.db").mkdir()
    opened = open_history(path)
    assert opened.notice.startswith("Nothing will be saved: ")
    assert opened.store.path is None
    assert talk(opened.store, "A", "hello") == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = open_history(tmp_path / "file" / "history.db")
    assert opened.notice.startswith("Nothing will be saved: ")
    assert opened.notice.count(str(tmp_path)) == 1
    assert "\n" not in opened.notice
    talk(opened.store, "A", "hello")
    with pytest.raises(HistoryError):
        HistoryStore(tmp_path / "file" / "history.db")


@pytest.mark.parametrize("logged", [False, True], ids=["closed", "left open"])
def test_what_can_only_be_read_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, logged: bool) -> None:
    """As on a disk that is full or read-only. With a log beside it, the last messages are in there."""
    store = HistoryStore(path)
    talk(store, "Tides", "the Moon pulls")
    if not logged:
        store.close()

    def refuse(*args: object, **kwargs: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(database_module.os, "open", refuse)
    before = path.read_bytes()
    opened = open_history(path)
    assert opened.notice == (
        f"Nothing will be saved: {path} can't be used (Read-only file system): check that the disk has room "
        "and the folder can be written. Earlier conversations can be read."
    )
    assert [found.conversation.title for found in opened.store.search("moon")] == ["Tides"]
    talk(opened.store, "Another", "not kept")
    assert path.read_bytes() == before
    store.close()


def test_a_database_too_large_to_copy_is_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HistoryStore(path)
    talk(store, "Tides", "the Moon pulls")
    store.close()
    monkeypatch.setattr(database_module, "COPIED_SIZE", 100)
    with pytest.raises(HistoryError):
        HistoryStore(None, copy_of=path)


def test_a_full_disk_is_one_clear_line(store: HistoryStore) -> None:
    conversation = talk(store, "A", "hello")
    pages = raw(store).execute("PRAGMA page_count").fetchone()[0]
    raw(store).execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(HistoryError, match="room") as raised:
        store.add(conversation, "user", "x" * 10**6, status=Status.COMPLETE)
    assert "\n" not in str(raised.value)
    assert len(store.messages(conversation)) == 1
