"""GGUF files whose making is stopped after the importance matrix, or not at all: who may go on with what."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from quantize import plan
from quantize.budget import Budget
from quantize.errors import BadRequest, NotEnoughDisk, OutputExists
from quantize.imatrix import ImportanceMatrix
from quantize.pipeline import Request, run
from quantize.plan import target_of
from quantize.progress import Stage
from quantize.resume import LayerRecord, State, Workspace
from quantize.type_choice import Wishes
from tests.quantize.stopping import SAMPLES, request_of, resumed, same, stopped, undisturbed

pytestmark = [pytest.mark.timeout(600)]


def test_stopped_while_types_are_chosen(plain_gguf: Path, tmp_path: Path) -> None:
    """The types are measured again, by the matrix that there is."""
    wanted = replace(request_of(plain_gguf, tmp_path), wishes=Wishes(budget=Budget(bits_per_weight=6.0)))
    stopped(wanted, Stage.MEASURE, 1)
    made, steps, said = resumed(wanted)
    assert said[0] == "going on with the importance matrix of the stopped run"
    assert Stage.CALIBRATE not in {step.stage for step in steps}
    assert Stage.MEASURE in {step.stage for step in steps}
    assert same(made, undisturbed(wanted, tmp_path))


def test_a_file_that_the_stopped_run_wrote(plain_gguf: Path, tmp_path: Path) -> None:
    """It is there now: the same command goes on all the same. Another one in its place is refused."""
    file = tmp_path / "matrix.gguf"
    wanted = request_of(plain_gguf, tmp_path, file=file)
    stopped(wanted, Stage.QUANTIZE, 1)
    content = file.read_bytes()
    with pytest.raises(BadRequest, match="is there and will be read: --samples doesn't go with it"):
        run(wanted)
    file.write_bytes(content[:-1] + b"\x01")
    with pytest.raises(BadRequest, match=r"matrix\.gguf holds another importance matrix than"):
        resumed(wanted)
    assert file.read_bytes() == content[:-1] + b"\x01"
    file.write_bytes(content)
    made, _, said = resumed(wanted)
    assert said == ["going on with the importance matrix of the stopped run"]
    assert file.read_bytes() == content
    file.unlink()
    assert same(made, undisturbed(wanted, tmp_path))
    assert file.read_bytes() == content
    with pytest.raises(BadRequest, match="is there and will be read: --samples doesn't go with it"):
        resumed(replace(wanted, force=True))
    assert ImportanceMatrix.read(file).chunk_count == SAMPLES


def test_no_room_for_the_file(plain_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the file's place that is named, not the result's; what was made is kept."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    wanted = request_of(plain_gguf, tmp_path, file=elsewhere / "matrix.gguf")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ImportanceMatrix, "write", full)
        with pytest.raises(NotEnoughDisk) as refused:
            run(wanted)
    assert str(refused.value) == f"{elsewhere} is full: make room, or give another place with --imatrix"
    kept = tmp_path / ".out.gguf.unfinished"
    assert refused.value.__notes__ == [
        f"stopped after its importance matrix was made, kept in {kept}: the same command with --resume "
        "goes on"
    ]
    made, _, said = resumed(wanted)
    assert said == ["going on with the importance matrix of the stopped run"]
    assert ImportanceMatrix.read(elsewhere / "matrix.gguf").chunk_count == SAMPLES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", made.name]


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_resume_without_anything_to_resume_begins(plain_gguf: Path, tmp_path: Path, kind: str) -> None:
    """So that one command can be repeated until it is done."""
    wanted = replace(request_of(plain_gguf, tmp_path), target=target_of(kind))
    made, _, said = resumed(replace(wanted, importance=None) if kind == "f16" else wanted)
    assert said[0] == "there is no stopped run to go on with: this one begins anew"
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


def test_another_kind_of_run_was_stopped(plain_gguf: Path, tmp_path: Path) -> None:
    """Of the same name: it is not gone on with, and not thrown away either."""
    wanted = request_of(plain_gguf, tmp_path)
    workspace = Workspace(tmp_path / "out.gguf")
    workspace.folder.mkdir()
    workspace.write(State("abc", 1, [LayerRecord(0, 1.0)]))
    with pytest.raises(OutputExists, match="was stopped after 1 layers: --resume goes on, --force begins"):
        run(wanted)
    with pytest.raises(BadRequest, match="was begun with another source, other settings"):
        resumed(wanted)
    assert workspace.read() == State("abc", 1, [LayerRecord(0, 1.0)])
    made = run(replace(wanted, force=True)).path
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


@pytest.mark.skipif(os.name == "nt", reason="no flock")
def test_two_runs_of_one_output(plain_gguf: Path, tmp_path: Path) -> None:
    """The second is refused."""
    wanted = request_of(plain_gguf, tmp_path)
    with (
        Workspace(tmp_path / "out.gguf").locked(),
        pytest.raises(BadRequest, match="another run is making"),
    ):
        run(wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oracle
def test_the_disk_holds_the_workspace_too(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states that go into a layer, and those that come out of it; not again what is there already."""
    wanted = request_of(tiny_folder, tmp_path, samples=400)
    config = json.loads((tiny_folder / "config.json").read_text())
    usage = SimpleNamespace(free=10**12)
    monkeypatch.setattr(plan, "human", str)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    def needed(request: Request) -> int:
        usage.free = 0
        with pytest.raises(NotEnoughDisk) as refused:
            run(request)
        usage.free = 10**12
        match = re.search(r": (\d+) needed \((\d+) for the result and (\d+) on the way\)", str(refused.value))
        assert match is not None
        assert int(match[1]) == int(match[2]) + int(match[3])
        return int(match[1])

    fewer = needed(wanted)
    more = needed(request_of(tiny_folder, tmp_path, samples=600))
    assert more - fewer == 200 * 64 * config["hidden_size"] * 4 * 2
    assert list(tmp_path.iterdir()) == []
    stopped(wanted, Stage.CALIBRATE, 200)
    there = Workspace(tmp_path / "out.gguf").used_bytes()
    assert there > 400 * 64 * config["hidden_size"] * 4
    assert needed(replace(wanted, resume=True)) == needed(replace(wanted, force=True)) == fewer - there
    stopped(replace(wanted, resume=True), Stage.QUANTIZE, 1)
    n_bytes = (tiny_folder / "model.safetensors").stat().st_size
    assert n_bytes < needed(replace(wanted, resume=True)) < 2 * n_bytes
