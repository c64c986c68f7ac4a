"""A store in a folder of its own."""

from pathlib import Path

import pytest

from edgechat.history import HistoryStore
from tests.edgechat.history.talks import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history.db"


@pytest.fixture
def store(path: Path) -> HistoryStore:
    return HistoryStore(path, clock=Clock())
