"""GGUF files whose making is stopped: the importance matrix goes on where it was, the file is the same."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.gguf import read_header
from models.receipt import receipt_in
from quantize import kept_sums, plan
from quantize.budget import Budget
from quantize.errors import BadRequest, BrokenWorkspace, NotEnoughDisk, OutputExists
from quantize.imatrix import ImportanceMatrix
from quantize.importance import Wanted
from quantize.pipeline import Request, run
from quantize.plan import target_of
from quantize.progress import Stage, Step
from quantize.resume import LayerRecord, State, Workspace
from quantize.type_choice import Wishes
from tests.oracles.gguf_bytes import without_receipt
from tests.oracles.raw_checkpoint import write

pytestmark = [pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SAMPLES = 4
"""As many as the tiny folder has layers: a sample's worth of progress is a layer."""

KILLED = """
import os, signal, sys
from pathlib import Path
from quantize import imatrix_torch
from quantize.importance import Wanted
from quantize.pipeline import Request, run
from quantize.plan import target_of

source, output, kind, stage, point = sys.argv[1:]
left = int(point)


def die():
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def counted(call):
    def instead(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            die()
        return call(*arguments, **options)

    return instead


def told(step):
    if step.stage == stage and step.index >= int(point):
        die()


layer = imatrix_torch._Pass.layer


def counted_layer(self, index, told):
    print("layer", index)
    return layer(self, index, told)


imatrix_torch._Pass.layer = counted_layer
if stage == "any":
    os.fsync = counted(os.fsync)
    Path.replace = counted(Path.replace)
run(
    Request(Path(source), target_of(kind), Path(output), threads=1, importance=Wanted(samples=4, length=64),
            resume=True),
    told,
    print,
)
"""


def killed(
    source: Path, output: Path, stage: str, point: int, kind: str = "q4_0"
) -> subprocess.CompletedProcess[str]:
    """A run that kills itself: before the flush or rename of that number, or at a step of a stage."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(output), kind, stage, str(point)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def layers_of(done: subprocess.CompletedProcess[str]) -> list[int]:
    """The layers that the samples went through."""
    return [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("layer ")]


def told_in(path: Path) -> dict[str, Any]:
    """The receipt, without what depends on the moment."""
    receipt = receipt_in(read_header(path))
    assert receipt is not None
    return {key: value for key, value in receipt.items() if key not in {"seconds", "peak_memory"}}


def stop_at(stage: Stage, index: int = 0) -> Callable[[Step], None]:
    """Ctrl-C at a step."""

    def progress(step: Step) -> None:
        if step.stage is stage and step.index >= index:
            raise KeyboardInterrupt

    return progress


def stopped(request: Request, stage: Stage, index: int = 0) -> None:
    """The run, interrupted there."""
    with pytest.raises(KeyboardInterrupt):
        run(request, stop_at(stage, index))


def resumed(request: Request) -> tuple[Path, list[Step], list[str]]:
    """What comes of going on, with all that was told and said."""
    steps: list[Step] = []
    said: list[str] = []
    return run(replace(request, resume=True), steps.append, said.append).path, steps, said


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as a GGUF file in float32."""
    folder = write(tmp_path_factory.mktemp("resume") / "model")
    return run(Request(folder, target_of("f32"), folder.parent / "f32.gguf")).path


def request_of(source: Path, place: Path, **wanted: Any) -> Request:
    """A small run."""
    return Request(
        source,
        target_of("q4_0"),
        place / "out.gguf",
        threads=1,
        importance=Wanted(**{"samples": SAMPLES, "length": 64, **wanted}),
    )


def undisturbed(request: Request, place: Path) -> Path:
    """The file that comes of it where nothing stops it."""
    return run(replace(request, output=place / "undisturbed.gguf")).path


def same(path: Path, other: Path) -> bool:
    """To the byte, but for times."""
    return without_receipt(path) == without_receipt(other) and told_in(path) == told_in(other)


# --- by torch, layer after layer


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no signals")
@pytest.mark.timeout(1800)
def test_killed_again_and_again(tiny_folder: Path, tmp_path: Path) -> None:
    """kill -9 before a flush or a rename: between states, sums and record, at the end of each layer."""
    output = tmp_path / "killed" / "out.gguf"
    output.parent.mkdir()
    died, layers = 0, []
    # Each layer flushes and renames nine times, and so do the beginning and the end about.
    for point in (2, 14, 17, 10, 12, 8, 5, 8, 10_000):
        done = killed(tiny_folder, output, "any", point)
        layers += layers_of(done)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        died += 1
        assert not output.exists()
    assert died >= 5
    assert "going on with the importance matrix of the stopped run" in done.stdout
    # A layer may be done twice, the one that was under way: none is begun again for another's sake.
    assert layers == sorted(layers)
    assert set(layers) == {0, 1, 2, 3}
    assert len(layers) <= 4 + died
    expected = undisturbed(request_of(tiny_folder, tmp_path), tmp_path)
    assert same(output, expected)
    assert [path.name for path in output.parent.iterdir()] == ["out.gguf"]


@pytest.mark.oracle
@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_killed_in_the_middle(tiny_folder: Path, tmp_path: Path) -> None:
    """After two of four layers: the other two are done then."""
    output = tmp_path / "killed" / "out.gguf"
    output.parent.mkdir()
    first = killed(tiny_folder, output, "calibrate", 2)
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert "there is no stopped run to go on with: this one begins anew" in first.stdout
    assert layers_of(first) == [0, 1]
    second = killed(tiny_folder, output, "calibrate", 10_000)
    assert second.returncode == 0, second.stderr
    assert "going on after layer 2 of 4" in second.stdout
    assert layers_of(second) == [2, 3]
    assert same(output, undisturbed(request_of(tiny_folder, tmp_path), tmp_path))
    assert [path.name for path in output.parent.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("source", [pytest.param("folder", marks=pytest.mark.oracle), "gguf"])
@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_killed_while_llama_cpp_quantizes(
    source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The importance matrix is there, and is not made again."""
    path: Path = request.getfixturevalue({"folder": "tiny_folder", "gguf": "gguf"}[source])
    output = tmp_path / "killed" / "out.gguf"
    output.parent.mkdir()
    first = killed(path, output, "quantize", 3)
    assert first.returncode == -signal.SIGKILL, first.stderr
    kept = Workspace(output).folder
    assert sorted(one.name for one in kept.iterdir()) == ["state.json", "whole.imatrix"]
    wanted = request_of(path, output.parent)
    made, steps, said = resumed(wanted)
    assert said == ["going on with the importance matrix of the stopped run"]
    assert Stage.CALIBRATE not in {step.stage for step in steps}
    assert same(made, undisturbed(wanted, tmp_path))
    assert [one.name for one in output.parent.iterdir()] == ["out.gguf"]


@pytest.mark.oracle
def test_what_was_stopped_is_not_thrown_away_unasked(
    tiny_folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without --resume or --force a run refuses, whatever it makes; other settings are refused too."""
    source = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("source") / "tiny")
    wanted = request_of(source, tmp_path)
    stopped(wanted, Stage.CALIBRATE, 2)
    assert [path.name for path in tmp_path.iterdir()] == [".out.gguf.unfinished"]
    again = "was stopped after 2 layers: --resume goes on, --force begins again"
    without = replace(wanted, importance=None)
    for other in (wanted, without, replace(without, target=target_of("f16"))):
        with pytest.raises(OutputExists, match=again):
            run(other)
    for other in (
        replace(wanted, target=target_of("q5_0")),
        without,
        replace(without, target=target_of("f16")),
        replace(wanted, importance=Wanted(samples=3, length=64)),
        replace(wanted, wishes=Wishes(budget=Budget(bits_per_weight=6.0))),
    ):
        with pytest.raises(BadRequest, match="was begun with another source, other settings"):
            resumed(other)
    weights = source / "model.safetensors"
    before = weights.stat().st_mtime_ns
    os.utime(weights, (1, 1))
    with pytest.raises(BadRequest, match="was begun with another source, other settings"):
        resumed(wanted)
    os.utime(weights, ns=(before, before))
    steps: list[Step] = []
    made = run(replace(wanted, force=True), steps.append).path
    assert [step.index for step in steps if step.stage is Stage.CALIBRATE] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert same(made, undisturbed(wanted, tmp_path))


@pytest.mark.oracle
def test_a_damaged_workspace(tiny_folder: Path, tmp_path: Path) -> None:
    """A record that can't be read is none; files that it names and that are not whole are told of."""
    wanted = request_of(tiny_folder, tmp_path)
    workspace = Workspace(tmp_path / "out.gguf")
    for name in ("hidden-002.bin", "layer-001.imatrix"):
        for length in (0, 100, None):
            stopped(replace(wanted, force=True), Stage.CALIBRATE, 2)
            path = workspace.folder / name
            if length is None:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:length])
            with pytest.raises(BrokenWorkspace, match=rf"{name} is missing or damaged; give --force instead"):
                resumed(wanted)
            assert [one.name for one in tmp_path.iterdir()] == [".out.gguf.unfinished"]
    stopped(replace(wanted, force=True), Stage.QUANTIZE, 2)
    (workspace.folder / "whole.imatrix").write_bytes(b"GGUF")
    with pytest.raises(BrokenWorkspace, match=r"whole\.imatrix is missing or damaged; give --force instead"):
        resumed(wanted)
    state = workspace.folder / "state.json"
    state.write_text(state.read_text()[:-5])
    made, steps, said = resumed(wanted)
    assert said[0] == "there is no stopped run to go on with: this one begins anew"
    assert len([step for step in steps if step.stage is Stage.CALIBRATE]) == 9
    assert [one.name for one in tmp_path.iterdir()] == ["out.gguf"]
    assert same(made, undisturbed(wanted, tmp_path))


# --- by llama.cpp, sample after sample


@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_killed_between_samples(gguf: Path, tmp_path: Path) -> None:
    """Those that are done are not done again."""
    output = tmp_path / "killed" / "out.gguf"
    output.parent.mkdir()
    for point in (1, 3):
        done = killed(gguf, output, "calibrate", point)
        assert done.returncode == -signal.SIGKILL, done.stderr
        state = Workspace(output).read()
        assert state is not None
        assert state.samples >= point
    wanted = request_of(gguf, output.parent)
    made, steps, said = resumed(wanted)
    assert said[0] == f"going on after sample {state.samples} of 4"
    assert said[1].startswith("plan: an importance matrix over 4 x 64 tokens (bundled), about ")
    assert min(step.index for step in steps if step.stage is Stage.CALIBRATE) >= 3
    assert same(made, undisturbed(wanted, tmp_path))
    assert [path.name for path in output.parent.iterdir()] == ["out.gguf"]


def test_sums_that_are_damaged(gguf: Path, tmp_path: Path) -> None:
    """Told of, wherever the file ends; more than the record tells of is as good."""
    wanted = request_of(gguf, tmp_path)
    stopped(wanted, Stage.CALIBRATE, 2)
    workspace = Workspace(tmp_path / "out.gguf")
    path = kept_sums.path_of(workspace)
    content = path.read_bytes()
    for length in range(0, len(content), len(content) // 20):
        path.write_bytes(content[:length])
        with pytest.raises(BrokenWorkspace, match=r"sums\.npz is missing or damaged"):
            kept_sums.restore(SimpleNamespace(sums={}, counts={}), 1, workspace)  # type: ignore[arg-type]
    with pytest.raises(BrokenWorkspace, match=r"sums\.npz is missing or damaged; give --force instead"):
        resumed(wanted)
    path.unlink()
    with pytest.raises(BrokenWorkspace, match=r"sums\.npz is missing or damaged; give --force instead"):
        resumed(wanted)
    path.write_bytes(content)
    kept = SimpleNamespace(sums={}, counts={})
    assert kept_sums.restore(kept, 1, workspace) >= 2  # type: ignore[arg-type]
    with pytest.raises(BrokenWorkspace):
        kept_sums.restore(SimpleNamespace(sums={}, counts={}), 99, workspace)  # type: ignore[arg-type]
    assert same(resumed(wanted)[0], undisturbed(wanted, tmp_path))


def test_sums_are_read_as_they_were_written(tmp_path: Path) -> None:
    """To the bit, experts and all."""
    workspace = Workspace(tmp_path / "out.gguf")
    workspace.folder.mkdir()
    rng = np.random.default_rng(1)
    sums = {"blk.0.a.weight": rng.random((1, 7)) / 3, "blk.1.b_exps.weight": rng.random((5, 3)) * 1e30}
    counts = {name: np.arange(len(one), dtype=np.int64) + 2**40 for name, one in sums.items()}
    empty = SimpleNamespace(sums={}, counts={})
    assert kept_sums.restore(empty, 0, workspace) == 0  # type: ignore[arg-type]
    kept_sums.keep(SimpleNamespace(sums=sums, counts=counts), 3, workspace)  # type: ignore[arg-type]
    assert kept_sums.restore(empty, 3, workspace) == 3  # type: ignore[arg-type]
    assert list(empty.sums) == list(sums)
    for name, one in sums.items():
        assert empty.sums[name].dtype == np.float64
        np.testing.assert_array_equal(empty.sums[name], one)
        np.testing.assert_array_equal(empty.counts[name], counts[name])
    assert [path.name for path in workspace.folder.iterdir()] == ["sums.npz"]


def test_what_the_model_wrote_is_kept(gguf: Path, tmp_path: Path) -> None:
    """Also where no sample was run yet."""
    wanted = request_of(gguf, tmp_path, self_seed=1)
    stopped(wanted, Stage.CALIBRATE, 1)
    made, steps, said = resumed(wanted)
    assert said[0].startswith("going on after sample ")
    assert Stage.WRITE not in {step.stage for step in steps}
    assert same(made, undisturbed(wanted, tmp_path))
    other = replace(wanted, output=tmp_path / "other.gguf")
    stopped(other, Stage.CALIBRATE, 1)
    workspace = Workspace(tmp_path / "other.gguf")
    state = workspace.read()
    assert state is not None
    state.samples = 0
    workspace.write(state)
    kept_sums.path_of(workspace).unlink()
    again, steps, said = resumed(other)
    assert said[0].startswith("plan: an importance matrix over 4 x 64 tokens (the model's own text)")
    assert Stage.WRITE not in {step.stage for step in steps}
    assert without_receipt(again) == without_receipt(made)


def test_without_torch_a_folder_goes_on_too(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is converted once more; the samples are not run again."""
    monkeypatch.setitem(sys.modules, "torch", None)
    wanted = request_of(write(tmp_path_factory.mktemp("plain") / "model"), tmp_path)
    stopped(wanted, Stage.CALIBRATE, 2)
    made, steps, said = resumed(wanted)
    assert said[0].startswith("going on after sample ")
    assert steps[0].stage is Stage.CONVERT
    assert min(step.index for step in steps if step.stage is Stage.CALIBRATE) >= 2
    assert same(made, undisturbed(wanted, tmp_path))


# --- whoever makes it


def test_stopped_while_types_are_chosen(gguf: Path, tmp_path: Path) -> None:
    """The types are measured again, by the matrix that there is."""
    wanted = replace(request_of(gguf, tmp_path), wishes=Wishes(budget=Budget(bits_per_weight=6.0)))
    stopped(wanted, Stage.MEASURE, 1)
    made, steps, said = resumed(wanted)
    assert said[0] == "going on with the importance matrix of the stopped run"
    assert Stage.CALIBRATE not in {step.stage for step in steps}
    assert Stage.MEASURE in {step.stage for step in steps}
    assert same(made, undisturbed(wanted, tmp_path))


def test_a_file_that_the_stopped_run_wrote(gguf: Path, tmp_path: Path) -> None:
    """It is there now: the same command goes on all the same. Another one in its place is refused."""
    file = tmp_path / "matrix.gguf"
    wanted = request_of(gguf, tmp_path, file=file)
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


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_resume_without_anything_to_resume_begins(gguf: Path, tmp_path: Path, kind: str) -> None:
    """So that one command can be repeated until it is done."""
    wanted = replace(request_of(gguf, tmp_path), target=target_of(kind))
    made, _, said = resumed(replace(wanted, importance=None) if kind == "f16" else wanted)
    assert said[0] == "there is no stopped run to go on with: this one begins anew"
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


def test_another_kind_of_run_was_stopped(gguf: Path, tmp_path: Path) -> None:
    """Of the same name: it is not gone on with, and not thrown away either."""
    wanted = request_of(gguf, tmp_path)
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
def test_two_runs_of_one_output(gguf: Path, tmp_path: Path) -> None:
    """The second is refused."""
    wanted = request_of(gguf, tmp_path)
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
