"""Saved states: what is kept, what goes first, and that nothing damaged or foreign is ever used."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from edgechat.engine.sequence import Segment
from edgechat.engine.states import SavedState, StateFiles, StateStore, open_states, pack, unpack


def state(conversation: str = "a", n_bytes: int = 1000, identity: str = "model") -> SavedState:
    segments = (Segment("ab", (97, 98)), Segment("cd", (99, 100), generated=True))
    return SavedState(conversation, identity, (97, 98, 99), segments, blob=bytes(n_bytes))


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return StateFiles(tmp_path, "model", 10_000, 256)


def test_a_file_gives_back_what_was_written(files: StateFiles) -> None:
    files.write(state())
    assert files.read("a") == state()
    assert files.read("b") is None
    (path,) = files.folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "a" not in path.name.split("-")


def test_the_last_one_counts(files: StateFiles) -> None:
    files.write(state(n_bytes=10))
    files.write(state(n_bytes=20))
    assert files.read("a") == state(n_bytes=20)
    assert len(list(files.folder.iterdir())) == 1


@pytest.mark.parametrize("flip", [0, 20, 60, 100, -1])
def test_a_damaged_file_is_removed(files: StateFiles, flip: int) -> None:
    files.write(state())
    files.wait()
    (path,) = files.folder.iterdir()
    data = bytearray(path.read_bytes())
    data[flip] ^= 1
    path.write_bytes(data)
    assert files.read("a") is None
    assert not path.exists()


def test_every_truncation_is_noticed() -> None:
    data = pack(state(n_bytes=50))
    assert unpack(data) == state(n_bytes=50)
    for length in range(len(data)):
        assert unpack(data[:length]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"identity": "other"},
        {"conversation": "b"},
        {"tokens": (97, 98, 98)},
        {"tokens": (97, 98, 99, 100, 101)},
        {"tokens": ()},
        {"segments": (Segment("a", (97, 98, 99, 999)),), "tokens": (97, 98, 99, 999)},
        {"segments": (Segment("a", (-1,)),), "tokens": (-1,)},
        {"holes": ((3, 2),)},
        {"holes": ((1, 2),)},
    ],
)
def test_what_contradicts_itself_or_is_foreign_is_not_used(
    files: StateFiles, change: dict[str, object]
) -> None:
    foreign = msgspec.structs.replace(state(), **change)
    files.path("a").write_bytes(pack(foreign))
    assert files.read("a") is None
    assert not files.path("a").exists()


def test_holes_are_left_out_of_the_tokens(files: StateFiles) -> None:
    holed = msgspec.structs.replace(state(), holes=((1, 3),), tokens=(97, 100), tainted=1)
    files.write(holed)
    assert files.read("a") == holed


def test_the_longest_unused_file_goes_first(files: StateFiles) -> None:
    for age, name in enumerate("abc"):
        files.write(state(name, 3000))
        files.wait()
        os.utime(files.path(name), (age, age))
    files.read("a")
    files.write(state("d", 3000))
    files.wait()
    assert [name for name in "abcd" if files.path(name).exists()] == ["a", "c", "d"]


def test_one_too_large_is_not_written(files: StateFiles) -> None:
    files.write(state(n_bytes=6000))
    assert files.wait(5)
    assert list(files.folder.iterdir()) == []


def test_a_folder_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "gone", "model", 10_000, 256)
    files.write(state())
    assert files.wait(5)
    assert files.read("a") is None


def test_memory_holds_the_last_ones() -> None:
    store = StateStore(3000)
    for name in "ab":
        store.put(name, state(name))
    store.get("a")
    store.put("c", state("c"))
    assert [store.get(name) is not None for name in "abc"] == [True, False, True]
    assert store.n_bytes <= 3000
    store.put("d", state("d", 5000))
    assert store.get("d") is None


def test_what_has_no_room_in_memory_goes_to_disk(files: StateFiles) -> None:
    store = StateStore(3000, files)
    for name in "abcd":
        store.put(name, state(name))
    assert {name for name in "abcd" if files.wait(5) and files.path(name).exists()} == {"a", "b"}
    assert store.get("a") == state("a")
    store.flush(5)
    assert all(files.path(name).exists() for name in "abcd")


def test_a_conversation_without_a_name_is_never_written(files: StateFiles) -> None:
    store = StateStore(1500, files)
    for key in (1, 2, 3):
        store.put(key, state(""))
    store.flush(5)
    assert list(files.folder.iterdir()) == []
    assert store.get(3) is not None


def test_taken_and_dropped(files: StateFiles) -> None:
    store = StateStore(3000, files)
    store.put("a", state())
    assert not store.take("a")  # not on disk
    assert store.get("a") is None
    files.write(state())
    assert store.get("a") is not None
    assert store.take("a")
    store.drop("a")
    assert store.get("a") is None
    assert list(files.folder.iterdir()) == []


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_states(str(tmp_path / "file" / "states"), 1000, 1000, "model", 256)
    assert store.files is None
    assert open_states("", 0, 1000, "model", 256).enabled is False


def test_what_a_killed_process_left_half_written_is_removed(files: StateFiles) -> None:
    old, new = (files.folder / f".{name}.state.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    files.write(state())
    files.wait()
    assert not old.exists()
    assert new.exists()  # another process may be writing it
