"""Runs that are killed: they go on where they were, and what comes out is the same to the byte."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantize import resume
from quantize.calibration import Samples
from quantize.errors import BadRequest, OutputExists
from quantize.layers import LayerRequest, run
from quantize.recipe import Format, Method, Recipe
from quantize.resume import LayerRecord, MatrixRecord, State, Workspace

ROOT = Path(__file__).parents[2]

KILLED = """
import os, signal, sys
from pathlib import Path
from quantize.layers import LayerRequest, run
from quantize.recipe import Format, Method, Recipe

source, output, method, point = sys.argv[1:]
left = int(point)


def counted(call):
    def instead(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)

    return instead


os.fsync = counted(os.fsync)
os.rename = counted(os.rename)
Path.replace = counted(Path.replace)
Path.rename = counted(Path.rename)
run(LayerRequest(Path(source), Recipe(Format(method), Method(method)), Path(output), samples=40, length=64,
                 resume=True, evaluated=False, threads=1))
"""


@pytest.fixture
def request_(tiny_folder: Path, tmp_path: Path) -> LayerRequest:
    """A small run."""
    return LayerRequest(
        tiny_folder, Recipe(), tmp_path / "out", samples=40, length=64, evaluated=False, threads=1
    )


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the receipt, which tells of times."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name != "edgechat-receipt.json"
    }


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no signals")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_killed_again_and_again(
    method: str, request_: LayerRequest, tiny_folder: Path, tmp_path: Path
) -> None:
    """kill -9 before a flush or a rename: between states and weights, weights and record, at the end."""
    output = tmp_path / "killed" / "out"
    output.parent.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = 0
    # Each layer flushes and renames some ten times; the fourth kill and later ones are near the end.
    for point in (1, 9, 14, 19, 17, 26, 8, 10_000):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tiny_folder), str(output), method, str(point)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        died += 1
        assert not output.exists()
    assert died >= 5
    recipe = Recipe(Format(method), Method(method))
    undisturbed = run(replace(request_, recipe=recipe)).path
    assert contents(output) == contents(undisturbed)
    assert sorted(path.name for path in output.parent.iterdir()) == ["out"]


@pytest.mark.oracle
def test_what_was_stopped_is_not_thrown_away_unasked(
    request_: LayerRequest, stopped_after_two_layers: Callable[[LayerRequest], None]
) -> None:
    """Without --resume or --force a run refuses; other settings are refused too."""
    stopped_after_two_layers(request_)
    assert request_.output is not None
    assert not request_.output.exists()
    with pytest.raises(OutputExists, match="was stopped after 2 layers: --resume goes on, --force begins"):
        run(request_)
    other = replace(request_, recipe=Recipe(group_size=32), resume=True)
    with pytest.raises(BadRequest, match="was begun with another source, other settings"):
        run(other)
    result = run(replace(request_, resume=True))
    assert "going on after layer 2 of 4" in result.notes
    assert [layer["layer"] for layer in result.receipt.layers] == [0, 1, 2, 3]
    first = contents(result.path)
    assert contents(run(replace(request_, force=True)).path) == first


@pytest.mark.oracle
@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_stopped_run_says_how_to_go_on(
    tiny_folder: Path,
    tmp_path: Path,
    *,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: BaseException,
    code: int,
) -> None:
    """In a line, where a layer is done; else, and with --quiet, in none."""
    from edgechat.cli import app
    from quantize.streaming import Streamer

    plain = Streamer._layer
    words = ["quantize", str(tiny_folder), "--to", "gptq", "--samples", "2", "--sequence-length", "16"]
    words += ["--threads", "1", "-o", str(tmp_path / "out")]
    said = {}
    for layers, more in ((0, []), (3, []), (3, ["--force", "--quiet"])):

        def interrupted(self: Streamer, index: int, last: int = layers) -> None:
            if index == last:
                raise stop
            plain(self, index)

        monkeypatch.setattr(Streamer, "_layer", interrupted)
        stop.__dict__.pop("__notes__", None)
        assert app.main([*words, *more]) == code
        said[layers, bool(more)] = capsys.readouterr().err.splitlines()
    assert not any("stopped" in line for line in said[0, False])
    assert said[3, False][-1] == (
        f"stopped after 3 of 4 layers, kept in {tmp_path / '.out.unfinished'}: the same command with "
        "--resume goes on"
    )
    assert said[3, True] == []
    monkeypatch.setattr(Streamer, "_layer", plain)
    assert app.main([*words, "--resume"]) == 0
    assert "note: going on after layer 3 of 4" in capsys.readouterr().err.splitlines()
    monkeypatch.setattr("edgechat.cli.progress_lines.ProgressLines.EVERY_S", 0.0)
    assert app.main([*words, "--resume", "--force"]) == 0
    anew = "note: there is no stopped run to go on with: this one begins anew"
    lines = capsys.readouterr().err.splitlines()
    assert anew in lines
    # of the comparison, 40 % are the source's four layers, 40 % those of the result
    compared = lines[lines.index("comparing the result with the source") + 1 :]
    shares = [line for line in compared if line.startswith("comparing: ")]
    assert shares[:8] == [f"comparing: {tenth}0%" for tenth in range(1, 9)]


@pytest.mark.oracle
def test_resume_without_anything_to_resume_begins(request_: LayerRequest) -> None:
    """So that one command can be repeated until it is done."""
    result = run(replace(request_, resume=True))
    assert result.path == request_.output
    assert "there is no stopped run to go on with: this one begins anew" in result.notes


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And anything else is nothing."""
    workspace = Workspace(tmp_path / "out")
    workspace.folder.mkdir()
    assert workspace.read() is None
    state = State(
        "abc", 2, [LayerRecord(0, 1.5, (MatrixRecord("mlp.up_proj", 0.25, "damping raised", True),))]
    )
    workspace.write(state)
    assert workspace.read() == state
    for text in ("", "{", "[]", '{"version": 2}', '{"version": 99, "layers": []}', "[" * 50_000):
        (workspace.folder / "state.json").write_text(text)
        assert workspace.read() is None


@pytest.mark.skipif(os.name == "nt", reason="no flock")
def test_two_runs_of_one_output(tmp_path: Path) -> None:
    """The second is refused."""
    with (
        Workspace(tmp_path / "out").locked(),
        pytest.raises(BadRequest, match="another run is making"),
        Workspace(tmp_path / "out").locked(),
    ):
        pass
    with Workspace(tmp_path / "out").locked():
        pass


@pytest.mark.skipif(os.name == "nt", reason="no flock")
def test_a_lock_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run opens the file; the other that holds it ends and a third begins, before the first locks it."""
    path = tmp_path / ".out.lock"
    taken, opened = resume._lock, []
    third = Workspace(tmp_path / "out").locked()

    def late(descriptor: int) -> bool:
        opened.append(descriptor)
        if len(opened) == 1:
            path.unlink()
            third.__enter__()
        return taken(descriptor)

    monkeypatch.setattr(resume, "_lock", late)
    with (
        pytest.raises(BadRequest, match="another run is making"),
        Workspace(tmp_path / "out").locked(),
    ):
        pass
    assert len(opened) == 3
    third.__exit__(None, None, None)
    assert not path.exists()


def _samples() -> Samples:
    return Samples(np.arange(6, dtype=np.int64).reshape(2, 3), 1, "self", "")


def test_kept_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    """And a file that is cut off, anywhere, is nothing."""
    workspace = Workspace(tmp_path / "out")
    workspace.folder.mkdir()
    assert workspace.kept_samples("key") is None
    workspace.keep_samples(_samples(), "key")
    kept = workspace.kept_samples("key")
    assert kept is not None
    assert (kept.tokens.tolist(), kept.n_chat, kept.source) == ([[0, 1, 2], [3, 4, 5]], 1, "self")
    assert workspace.kept_samples("another key") is None
    path = workspace.folder / "samples.npz"
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert workspace.kept_samples("key") is None, length


def test_dying_between_the_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old output is put back by the next run, whatever that is asked; then --force begins again."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "config.json").write_text("old")
    workspace = Workspace(output)
    workspace.folder.mkdir()
    workspace.result.mkdir()
    renamed = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self == workspace.result:
            raise KeyboardInterrupt
        return renamed(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            workspace.deliver()
    assert not output.exists()
    again = Workspace(output)
    assert again.put_back()
    assert (output / "config.json").read_text() == "old"
    assert not again.put_back()
    again.begin("x", 1, resume=False, force=True)
    assert (output / "config.json").read_text() == "old"


@pytest.mark.oracle
def test_a_run_puts_back_what_another_one_was_replacing(request_: LayerRequest, tiny_folder: Path) -> None:
    """Also one that is refused."""
    assert request_.output is not None
    workspace = Workspace(request_.output)
    workspace.folder.mkdir()
    workspace.write(State("abc", 1, [LayerRecord(0, 1.0, ())]))
    workspace.replaced.mkdir()
    (workspace.replaced / "config.json").write_text("old")
    with pytest.raises(OutputExists, match="was stopped after 1 layers"):
        run(request_)
    assert (request_.output / "config.json").read_text() == "old"
