"""Files in the making: gone after a failure, and told from another process's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantize.partial import finish, partial, partial_path, remove_stale


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """Whatever the failure is."""
    output = tmp_path / "model.gguf"
    for kind in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(kind):
            fail_halfway(output, kind)
        assert list(tmp_path.iterdir()) == []


def fail_halfway(output: Path, kind: type[BaseException]) -> None:
    """Write a part of a file, and fail."""
    with partial(output) as path:
        path.write_bytes(b"half")
        assert path.name.endswith(".partial")
        raise kind


def test_success_is_a_rename(tmp_path: Path) -> None:
    """The old file is there until the new one is."""
    output = tmp_path / "model.gguf"
    output.write_bytes(b"old")
    with partial(output) as path:
        path.write_bytes(b"new")
        assert output.read_bytes() == b"old"
        finish(path, output)
    assert output.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [output]


def test_only_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    """Ours, a live process's and other people's files stay; what they were to become does not matter."""
    output = tmp_path / "model.gguf"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        dead = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
        )
        pid = int(dead.stdout)
        stale = tmp_path / f".model.gguf.{pid}-0123abcd.partial"
        kept = [
            partial_path(output),
            tmp_path / f".model.gguf.{living.pid}-0123abcd.partial",
            tmp_path / f"model.gguf.{pid}-0123abcd.partial",
            tmp_path / ".model.gguf.partial",
        ]
        other = tmp_path / f".other.gguf.{pid}-0123abcd.partial"
        for path in (stale, other, *kept):
            path.write_bytes(b"x")
        assert set(remove_stale(output)) == {stale, other}
        assert all(path.exists() for path in kept)
        living.communicate(b"\n")


def test_a_process_that_took_a_dead_ones_number(tmp_path: Path) -> None:
    """Is younger than the file, so the file is not its own."""
    output = tmp_path / "model.gguf"
    path = partial_path(output)
    path.write_bytes(b"x")
    assert remove_stale(output) == []
    os.utime(path, (1e9, 1e9))
    assert remove_stale(output) == [path]
