"""Conversations as they are saved: what is written is read again, by this app and by another one."""

import errno
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from edgechat.history import (
    ConversationGone,
    DamagedHistory,
    HistoryError,
    HistoryStore,
    Status,
    open_history,
)
from edgechat.history import database as database_module
from edgechat.history import index as index_module
from edgechat.history.migrations import MIGRATIONS
from edgechat.records import Timings

TIMINGS = Timings(0.5, 0.25, 12, 0.2, 30, 1.5, 20.0, 4)


def raw(store: HistoryStore) -> sqlite3.Connection:
    """What the store writes to."""
    return store._database.connection


class Clock:
    """Seconds that go on by one with each look."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history.db"


@pytest.fixture
def store(path: Path) -> HistoryStore:
    return HistoryStore(path, clock=Clock())


def talk(store: HistoryStore, title: str, *texts: str) -> int:
    """A conversation whose messages alternate, the person's first."""
    conversation = store.create(title, "starter", "")
    for number, text in enumerate(texts):
        store.add(conversation.id, "assistant" if number % 2 else "user", text, status=Status.COMPLETE)
    return conversation.id


def test_what_is_written_is_read_again(store: HistoryStore, path: Path) -> None:
    conversation = store.create("Tides", "starter", "Be brief.")
    question = store.add(conversation.id, "user", "Why are there tides?", status=Status.COMPLETE)
    answer = store.add(conversation.id, "assistant", "", status=Status.PARTIAL, model="starter")
    store.write(answer.id, "The Mo")
    store.write(answer.id, "The Moon.", status=Status.COMPLETE, n_tokens=3, n_context=40, timings=TIMINGS)
    store.close()

    again = HistoryStore(path)
    assert [m.content for m in again.messages(conversation.id)] == ["Why are there tides?", "The Moon."]
    read = again.messages(conversation.id)[1]
    assert (read.status, read.n_tokens, read.n_context, read.timings) == (Status.COMPLETE, 3, 40, TIMINGS)
    assert again.messages(conversation.id)[0] == question
    got = again.get(conversation.id)
    assert (got.title, got.system_prompt, got.n_messages) == ("Tides", "Be brief.", 2)
    assert again.latest() == got


def test_files_are_for_their_owner_only(store: HistoryStore, path: Path) -> None:
    talk(store, "A", "one")
    files = list(path.parent.iterdir())
    assert {f.name for f in files} == {"history.db", "history.db-wal", "history.db-shm"}
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_pragmas(store: HistoryStore) -> None:
    pragmas = {
        name: raw(store).execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "user_version")
    }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 1,
        "foreign_keys": 1,
        "busy_timeout": 5000,
        "user_version": len(MIGRATIONS),
    }


def test_newest_conversation_is_first(store: HistoryStore) -> None:
    first, second = talk(store, "A", "one"), talk(store, "B", "two")
    assert [f.conversation.id for f in store.search("")] == [second, first]
    store.add(first, "user", "again", status=Status.COMPLETE)
    assert [f.conversation.id for f in store.search("")] == [first, second]
    assert [f.conversation.id for f in store.search("", limit=1)] == [first]


def test_deleting_takes_the_messages_and_the_index_along(store: HistoryStore) -> None:
    kept, gone = talk(store, "A", "kangaroo"), talk(store, "B", "kangaroo")
    store.delete(gone)
    store.delete(gone)
    assert [f.conversation.id for f in store.search("kangaroo")] == [kept]
    assert raw(store).execute("SELECT count(*) FROM messages").fetchone() == (1,)
    with pytest.raises(ConversationGone):
        store.get(gone)
    with pytest.raises(ConversationGone):
        store.add(gone, "user", "lost?", status=Status.COMPLETE)
    with pytest.raises(ConversationGone):
        store.update(gone, title="B2")


def test_a_regenerated_answer_is_hidden_not_lost(store: HistoryStore) -> None:
    conversation = talk(store, "A", "question", "first kiwi")
    answer = store.messages(conversation)[1].id
    store.supersede([answer])
    assert [m.content for m in store.messages(conversation)] == ["question"]
    assert store.search("kiwi") == []
    assert store.get(conversation).n_messages == 1
    assert raw(store).execute("SELECT content FROM messages WHERE superseded").fetchall() == [("first kiwi",)]
    store.supersede([answer], superseded=False)
    assert [m.content for m in store.messages(conversation)] == ["question", "first kiwi"]


def test_a_message_that_is_withdrawn_takes_an_empty_conversation_along(store: HistoryStore) -> None:
    number = talk(store, "A", "question", "answer")
    question, answer = (m.id for m in store.messages(number))
    assert not store.withdraw(answer)
    assert [m.content for m in store.messages(number)] == ["question"]
    store.supersede([question])
    assert not store.withdraw(999)
    assert store.get(number).n_messages == 0
    assert store.withdraw(question)
    assert store.search("") == []
    assert not store.withdraw(question)


def test_what_is_done_together_is_done_whole_or_not_at_all(store: HistoryStore) -> None:
    number = talk(store, "A", "question", "answer")

    def fail() -> None:
        with store.together():
            store.supersede([m.id for m in store.messages(number)])
            store.update(number, title="B")
            store.add(999, "user", "lost?", status=Status.COMPLETE)

    with pytest.raises(ConversationGone):
        fail()
    assert [m.content for m in store.messages(number)] == ["question", "answer"]
    assert store.get(number).title == "A"
    with store.together():
        store.supersede([m.id for m in store.messages(number)])
        store.add(number, "user", "another", status=Status.COMPLETE)
    assert [m.content for m in store.messages(number)] == ["another"]


@pytest.mark.parametrize("full_text", [True, False])
@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("quick fox", {"animals"}),
        ("fox quick", {"animals"}),
        ("qui", {"animals"}),
        ("ANIM", {"animals"}),
        ("100%", {"numbers"}),
        ("_", {"numbers"}),
        ('"fox" OR', set()),
        ("NOT fox", set()),
        ("naïve", {"accents"}),
        ("大阪", {"places"}),
        ("zebra", set()),
        ("* ( )", set()),
    ],
)
def test_search(
    path: Path, monkeypatch: pytest.MonkeyPatch, full_text: bool, text: str, titles: set[str]
) -> None:
    if not full_text:
        monkeypatch.setattr(database_module, "has_fts5", lambda db: False)
    store = HistoryStore(path)
    talk(store, "animals", "The quick brown fox")
    talk(store, "numbers", "It is 100% a snake_case")
    talk(store, "accents", "A naïve idea")
    talk(store, "places", "東京と大阪")
    assert {f.conversation.title for f in store.search(text)} == titles


def test_an_excerpt_shows_the_match(store: HistoryStore) -> None:
    talk(store, "A", "word " * 60 + "needle " + "word " * 60)
    (found,) = store.search("needle")
    assert "needle" in found.excerpt
    assert len(found.excerpt) < 120


def test_the_index_follows_every_change(store: HistoryStore) -> None:
    conversation = store.create("A", "starter", "")
    answer = store.add(conversation.id, "assistant", "", status=Status.PARTIAL)
    for end in range(1, 12):
        store.write(answer.id, "alpha bravo"[:end])
    assert len(store.search("bravo")) == 1
    store.write(answer.id, "charlie")
    assert store.search("bravo") == []
    raw(store).execute("INSERT INTO messages_index (messages_index, rank) VALUES ('integrity-check', 1)")


def test_a_database_survives_an_edgechat_without_full_text_search(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = HistoryStore(path)
    talk(first, "A", "alpha")
    first.close()
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "has_fts5", lambda db: False)
        without = HistoryStore(path)
        names = raw(without).execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        assert names == []
        talk(without, "B", "bravo")
        assert len(without.search("bravo")) == 1
        without.close()
    again = HistoryStore(path)
    assert again._database.full_text
    assert [f.conversation.title for f in again.search("bravo")] == ["B"]
    raw(again).execute("INSERT INTO messages_index (messages_index, rank) VALUES ('integrity-check', 1)")


def test_match_expressions_quote_what_a_person_types() -> None:
    assert index_module.match_expression('quick AND "fox') == '"quick" "AND" "fox"*'
    assert index_module.match_expression("…") == ""


def test_two_apps_write_at_once(path: Path) -> None:
    stores = [HistoryStore(path) for _ in range(2)]
    errors: list[Exception] = []

    def write(store: HistoryStore) -> None:
        try:
            conversation = store.create("A", "starter", "")
            answer = store.add(conversation.id, "assistant", "", status=Status.PARTIAL)
            for number in range(100):
                store.write(answer.id, "x" * number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for found in stores[0].search(""):
        assert [m.content for m in stores[1].messages(found.conversation.id)] == ["x" * 99]


def test_two_apps_make_the_database_at_once(path: Path) -> None:
    barrier = threading.Barrier(4)
    errors: list[Exception] = []

    def open_it() -> None:
        try:
            barrier.wait()
            HistoryStore(path).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


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


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_file_keeps_a_word_of_what_was_deleted(store: HistoryStore, path: Path, elsewhere: bool) -> None:
    """Neither the rows, nor the index, nor the log beside the database; another app may have it open."""
    other = HistoryStore(path) if elsewhere else None
    talk(store, "what stays", "an ordinary question", "an ordinary answer")
    number = talk(store, "Grumbelquast", *(f"word{n} Xylobrand{n} " * 300 for n in range(20)))
    talk(store, "what stays too", "another question", "another answer")
    store.delete(number)
    for file in path.parent.iterdir():
        content = file.read_bytes().lower()
        for word in (b"rumbelquast", b"ylobrand"):
            assert word not in content, file
    assert [found.conversation.title for found in store.search("question")] == [
        "what stays too",
        "what stays",
    ]
    if other is not None:
        other.close()


@pytest.mark.parametrize("record", ["{", '{"prompt_s": "long", "seed": "none"}', "[" * 50_000, '"x"'])
def test_a_message_is_read_without_figures_that_cant_be(store: HistoryStore, record: str) -> None:
    """The text is what counts."""
    number = talk(store, "Title", "a question", "an answer")
    raw(store).execute("UPDATE messages SET timings = ?, receipt = ?", (record, record))
    messages = store.messages(number)
    assert [(m.content, m.timings, m.receipt) for m in messages] == [
        ("a question", None, None),
        ("an answer", None, None),
    ]
