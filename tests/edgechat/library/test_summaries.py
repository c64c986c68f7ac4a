"""Listing models without reading them again."""

import cProfile
import json
import os
import pstats
from pathlib import Path

import pytest

from edgechat import paths
from edgechat.cli import app
from edgechat.library import summaries as module
from edgechat.library.inspect import RECEIPT, ModelSummary
from edgechat.library.local import list_models, models_dir
from edgechat.library.summaries import FILE, Trouble, summaries
from edgechat.library.usage import forget_use, last_use, record_use
from tests.edgechat.library.tiny_models import gguf


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were read."""
    seen: list[str] = []
    summarize = module.summarize

    def counted(path: Path, name: str = "") -> ModelSummary:
        seen.append(name)
        return summarize(path, name)

    monkeypatch.setattr(module, "summarize", counted)
    return seen


@pytest.fixture
def tiny() -> Path:
    models_dir().mkdir(parents=True)
    path = models_dir() / "tiny.gguf"
    path.write_bytes(gguf())
    return path


def _list() -> list[ModelSummary | Trouble]:
    return summaries(list_models())


@pytest.mark.usefixtures("tiny")
def test_each_is_read_once(reads: list[str]) -> None:
    first = _list()
    assert reads == ["starter", "tiny"]
    assert _list() == first
    assert reads == ["starter", "tiny"]


def test_what_changes_is_read_again(reads: list[str], tiny: Path) -> None:
    _list()
    os.utime(tiny, ns=(1, 1))
    _list()
    assert reads == ["starter", "tiny", "tiny"]
    (tiny.parent / RECEIPT).write_text('{"perplexity": 3}')
    _, known = _list()
    assert isinstance(known, ModelSummary)
    assert known.receipt == {"perplexity": 3}
    assert reads == ["starter", "tiny", "tiny", "tiny"]
    tiny.write_bytes(b"GGUF\x03")
    _, known = _list()
    assert isinstance(known, Trouble)
    assert (known.code, "is cut off" in known.message) == (4, True)
    _list()
    assert reads == ["starter", *["tiny"] * 4]  # a broken file is not read again either


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"version": "0", "entries": {}}', b"\xff" * 100, b"[" * 10**5]
)
def test_a_damaged_file_is_made_anew(reads: list[str], damage: bytes) -> None:
    first = _list()
    place = paths.cache_dir() / FILE
    whole = place.read_bytes()
    place.write_bytes(damage)
    assert _list() == first
    assert reads == ["starter", "tiny"] * 2
    assert json.loads(place.read_bytes()) == json.loads(whole)


@pytest.mark.usefixtures("tiny")
def test_a_folder_that_cannot_be_written(reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(paths, "write_atomic", refuse)
    assert len(_list()) == 2


def test_two_hundred_models(capsys: pytest.CaptureFixture[str]) -> None:
    """The work of a listing, counted in calls: it says the same on a busy machine.

    An idle machine makes some two million calls a second under no profiler: this is a small part of 0.3 s.
    """
    folder = models_dir()
    data = gguf()
    for number in range(200):
        place = folder / f"owner{number % 7}" / f"repo{number}"
        place.mkdir(parents=True)
        (place / f"model-{number}.gguf").write_bytes(data)
    assert app.main(["models", "ls"]) == 0
    capsys.readouterr()
    profile = cProfile.Profile()
    profile.enable()
    code = app.main(["models", "ls"])
    profile.disable()
    assert code == 0
    assert len(capsys.readouterr().out.splitlines()) == 201
    assert pstats.Stats(profile).total_calls < 300_000  # type: ignore[attr-defined]


def test_the_last_use(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    assert last_use(model) is None
    record_use(link)
    used = last_use(model)
    assert used is not None
    assert used == last_use(link)
    forget_use(model)
    assert last_use(link) is None
