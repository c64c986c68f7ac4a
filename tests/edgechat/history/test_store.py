"""Conversations as they are saved: what is written is read again, by this app and by another one."""

import stat
import threading
from pathlib import Path

import pytest

from edgechat.history import (
    ConversationGone,
    HistoryStore,
    Status,
)
from edgechat.history import database as database_module
from edgechat.history import index as index_module
from edgechat.history.migrations import MIGRATIONS
from edgechat.records import Timings
from tests.edgechat.history.talks import raw, talk

TIMINGS = Timings(0.5, 0.25, 12, 0.2, 30, 1.5, 20.0, 4)


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


@pytest.mark.parametrize("text", [None, "", "Be brief."])
def test_no_system_prompt_is_not_the_model_s_own(store: HistoryStore, path: Path, text: str | None) -> None:
    made = store.create("Tides", "starter", text).id
    changed = store.create("Moons", "starter", "Be kind.").id
    store.set_system_prompt(changed, text)
    store.close()
    again = HistoryStore(path)
    assert [again.get(number).system_prompt for number in (made, changed)] == [text, text]
    assert {found.conversation.system_prompt for found in again.search("")} == {text}
    again.close()


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
