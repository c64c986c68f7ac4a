"""GGUF files whose making is stopped while torch makes the importance matrix: it goes on after a layer."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from quantize.budget import Budget
from quantize.errors import BadRequest, BrokenWorkspace, OutputExists
from quantize.importance import Wanted
from quantize.pipeline import run
from quantize.plan import target_of
from quantize.progress import Stage, Step
from quantize.resume import Workspace
from quantize.type_choice import Wishes
from tests.quantize.stopping import killed, layers_of, request_of, resumed, same, stopped, undisturbed

pytestmark = [pytest.mark.timeout(600)]


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
    path: Path = request.getfixturevalue({"folder": "tiny_folder", "gguf": "plain_gguf"}[source])
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
