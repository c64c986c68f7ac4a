"""GGUF files whose making is stopped while llama.cpp makes the importance matrix: it goes on by samples."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quantize import kept_sums
from quantize.errors import BrokenWorkspace
from quantize.progress import Stage
from quantize.resume import Workspace
from tests.oracles.gguf_bytes import without_receipt
from tests.oracles.raw_checkpoint import write
from tests.quantize.stopping import killed, request_of, resumed, same, stopped, undisturbed

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_killed_between_samples(plain_gguf: Path, tmp_path: Path) -> None:
    """Those that are done are not done again."""
    output = tmp_path / "killed" / "out.gguf"
    output.parent.mkdir()
    for point in (1, 3):
        done = killed(plain_gguf, output, "calibrate", point)
        assert done.returncode == -signal.SIGKILL, done.stderr
        state = Workspace(output).read()
        assert state is not None
        assert state.samples >= point
    wanted = request_of(plain_gguf, output.parent)
    made, steps, said = resumed(wanted)
    assert said[0] == f"going on after sample {state.samples} of 4"
    assert said[1].startswith("plan: an importance matrix over 4 x 64 tokens (bundled), about ")
    assert min(step.index for step in steps if step.stage is Stage.CALIBRATE) >= 3
    assert same(made, undisturbed(wanted, tmp_path))
    assert [path.name for path in output.parent.iterdir()] == ["out.gguf"]


def test_sums_that_are_damaged(plain_gguf: Path, tmp_path: Path) -> None:
    """Told of, wherever the file ends; more than the record tells of is as good."""
    wanted = request_of(plain_gguf, tmp_path)
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


def test_what_the_model_wrote_is_kept(plain_gguf: Path, tmp_path: Path) -> None:
    """Also where no sample was run yet."""
    wanted = request_of(plain_gguf, tmp_path, self_seed=1)
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
