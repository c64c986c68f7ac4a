"""What the tests of the store do and see."""

import sqlite3

from edgechat.history import HistoryStore, Status


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


def talk(store: HistoryStore, title: str, *texts: str) -> int:
    """A conversation whose messages alternate, the person's first."""
    conversation = store.create(title, "starter", "")
    for number, text in enumerate(texts):
        store.add(conversation.id, "assistant" if number % 2 else "user", text, status=Status.COMPLETE)
    return conversation.id
