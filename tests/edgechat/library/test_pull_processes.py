"""`edgechat models pull` beside other pulls, killed, and for files side by side."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgechat.library.local import models_dir
from tests.edgechat.library.hub_server import HubServer, Trouble
from tests.edgechat.library.pulling import FILE, PART_1, PART_2, REPO, left_over, pull, target
from tests.edgechat.library.tiny_models import split_gguf


def _start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "edgechat", "models", "pull", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(Path(__file__).parents[3])},
    )


def _wait_until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_killed_goes_on(hub: HubServer, model: bytes, kind: signal.Signals) -> None:
    hub.troubles[FILE] = Trouble(silent_after=200_000, times=1)
    with _start(REPO) as process:
        _wait_until(lambda: hub.sent >= 200_000)
        _wait_until(lambda: any(path.stat().st_size >= 150_000 for path in models_dir().rglob(FILE)))
        process.send_signal(kind)
        out, err = process.communicate(timeout=60)
    assert process.returncode == (130 if kind == signal.SIGINT else -kind)
    assert (out, "Traceback" in err) == ("", False)
    assert not target().exists()
    before = hub.sent
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert hub.ranges(FILE)[1] not in ("", "0-")
    assert hub.sent - before < len(model) - 100_000  # most of it was there
    assert left_over() == []


def test_two_pulls_of_one_model(hub: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "120")
    gate = threading.Event()
    hub.troubles[FILE] = Trouble(silent_after=100_000, gate=gate, times=1)
    with _start(REPO) as first:
        _wait_until(lambda: hub.sent >= 100_000)
        with _start(REPO) as second:
            assert second.stderr is not None
            lines = [second.stderr.readline(), second.stderr.readline()]
            assert lines[1] == f"another edgechat is pulling {FILE}: waiting for it\n"
            gate.set()
            first_out, _ = first.communicate(timeout=120)
            second_out, second_err = second.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first_out == second_out == f"{target()}\n"
    assert "is here already" in second_err
    assert target().read_bytes() == model
    assert len(hub.ranges(FILE)) == 1
    assert left_over() == []


def test_files_come_side_by_side(hub: HubServer) -> None:
    first, second = split_gguf()
    hub.repositories[REPO] = {PART_1: first, PART_2: second}
    gate = threading.Event()
    for name in (PART_1, PART_2):
        hub.troubles[name] = Trouble(silent_after=10_000, gate=gate)

    def open_when_both_are_asked_for() -> None:
        _wait_until(lambda: hub.ranges(PART_1) and hub.ranges(PART_2))
        gate.set()

    watcher = threading.Thread(target=open_when_both_are_asked_for, daemon=True)
    watcher.start()
    assert pull(REPO) == 0
    watcher.join(60)
    assert gate.is_set()
