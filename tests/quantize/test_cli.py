"""`edgechat quantize` as a person calls it: what goes where, exit codes, signals, kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.verify import verify_gguf
from tests.oracles.raw_checkpoint import config, write

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "edgechat", "quantize"]


def called(*arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=600,
        check=False,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny checkpoint."""
    return write(tmp_path / "model")


def test_the_path_on_stdout_and_all_else_on_stderr(model: Path, tmp_path: Path) -> None:
    """With a line that can be pasted."""
    done = called(model, "--to", "gguf", "--type", "Q4_0", folder=tmp_path)
    path = tmp_path / "model-Q4_0.gguf"
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
    verify_gguf(path)
    assert "bits per weight" in done.stderr
    assert "to run, it fits: about" in done.stderr
    assert f'edgechat ask {path} "' in done.stderr
    quiet = called(model, "--type", "q4_0", "--force", "--quiet", folder=tmp_path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, f"{path}\n", "")


@pytest.mark.parametrize(
    "template",
    [b"{{", bytes(range(256)) * 4, b"{{ messages[0].role }}"],
    ids=["unfinished", "bytes", "without the question"],
)
def test_a_chat_template_that_cant_be_used_is_said(model: Path, tmp_path: Path, template: bytes) -> None:
    """The result is a model without chat: what is proposed is a text to continue."""
    (model / "chat_template.jinja").write_bytes(template)
    output = tmp_path / "x.gguf"
    done = called(model, "--type", "q8_0", "-o", output)
    assert (done.returncode, done.stdout) == (0, f"{output}\n")
    assert "note: chats with it will be plain completions: the chat template " in done.stderr
    assert f'Try it: edgechat ask {output} --raw "' in done.stderr
    again = called(output, "--type", "f16", "-o", tmp_path / "y.gguf", "--json")
    (remark,) = json.loads(again.stdout)["notes"]
    assert remark.startswith("chats with it will be plain completions: the chat template ")


def test_one_json_object(model: Path, tmp_path: Path) -> None:
    """With the figures."""
    done = called(model, "--type", "f16", "-o", tmp_path / "x.gguf", "--json")
    record = json.loads(done.stdout)
    assert record["path"] == str(tmp_path / "x.gguf")
    assert record["bytes"] == (tmp_path / "x.gguf").stat().st_size
    assert (record["type"], record["architecture"], record["notes"]) == ("F16", "llama", [])
    sizes = {"F16": 2, "F32": 4}  # what the tensors alone take
    tensors = verify_gguf(tmp_path / "x.gguf").tensors
    n_bytes = sum(one.n_elements * sizes[one.type.name] for one in tensors)
    assert record["bits_per_weight"] == pytest.approx(8 * n_bytes / record["parameters"], abs=1e-4)


def test_each_failure_has_its_code_and_one_line(model: Path, tmp_path: Path) -> None:
    """2 usage, 3 not found, 4 broken, 6 not supported."""
    existing = tmp_path / "there.gguf"
    existing.write_bytes(b"x")
    unknown = write(tmp_path / "unknown", model=config(architectures=["XForCausalLM"]))
    broken = write(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\x01\0\0\0\0\0\0\0")
    cases = {
        (model, "--type", "q99"): (2, "there is no type 'q99'"),
        (model, "--to", "onnx"): (2, "there is no format 'onnx'"),
        (model, "-o", existing): (2, "exists already: --force replaces it"),
        (tmp_path / "nothing",): (3, "no file at"),
        (broken,): (4, "is cut off"),
        (unknown,): (6, "XForCausalLM is not supported; supported are Llama (LlamaForCausalLM), "),
    }
    for arguments, (code, message) in cases.items():
        done = called(*arguments, folder=tmp_path)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert existing.read_bytes() == b"x"
    assert list(tmp_path.glob(".*")) == []


def started(*arguments: object, folder: Path) -> subprocess.Popen[str]:
    """The command, running."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )


def wait_for_bytes(folder: Path, n_bytes: int) -> None:
    """Until files in the making hold that much."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if sum(path.stat().st_size for path in folder.glob(".*.partial")) >= n_bytes:
            return
        time.sleep(0.01)
    raise AssertionError("nothing was written in five minutes")


@pytest.mark.skipif(os.name == "nt", reason="no signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.timeout(600)
def test_a_signal_leaves_nothing(starter_gguf: Path, tmp_path: Path, number: int, code: int) -> None:
    """But the importance matrix; in the middle of llama.cpp's work, whose process ends too."""
    import psutil

    arguments = ("--type", "q6_k", "--samples", 2, "-o", tmp_path / "out.gguf")
    with started(starter_gguf, *arguments, folder=tmp_path) as process:
        wait_for_bytes(tmp_path, 8_000_000)
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == code, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    last, kept = stderr.splitlines()[-1], tmp_path / ".out.gguf.unfinished"
    assert last == (
        f"stopped after its importance matrix was made, kept in {kept}: the same command with --resume "
        "goes on"
    )
    psutil.wait_procs(children, timeout=60)
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == [kept]
    assert sorted(path.name for path in kept.iterdir()) == ["state.json", "whole.imatrix"]


@pytest.mark.skipif(os.name == "nt", reason="no signals")
@pytest.mark.parametrize(
    ("kind", "n_bytes"), [("f16", 1_000_000), ("f16", 150_000_000), ("q5_k_m", 20_000_000)]
)
@pytest.mark.timeout(900)
def test_after_kill_9_nothing_looks_finished(
    starter_gguf: Path, tmp_path: Path, kind: str, n_bytes: int
) -> None:
    """Nothing has the model's name; the helper ends by itself; the next run clears up."""
    import psutil

    output = tmp_path / "out.gguf"
    samples = ("--samples", 2) if kind == "q5_k_m" else ()
    with started(starter_gguf, "--type", kind, *samples, "-o", output, folder=tmp_path) as process:
        wait_for_bytes(tmp_path, n_bytes)
        children = psutil.Process(process.pid).children()
        process.kill()
        process.communicate(timeout=120)
    psutil.wait_procs(children, timeout=60)
    assert not any(child.is_running() for child in children)
    left = list(tmp_path.iterdir())
    assert left
    ours = {".out.gguf.unfinished", ".out.gguf.lock"} if kind == "q5_k_m" else set()
    assert {path.name for path in left if not path.name.endswith(".partial")} == ours
    done = called(starter_gguf, "--type", "q8_0", "-o", output, "--force")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [output]
    verify_gguf(output)


def test_the_bar_is_drawn_on_a_terminal(model: Path, tmp_path: Path) -> None:
    """A real one, with the tensor's number and name; gone at the end."""
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(
        [*COMMAND, str(model), "--type", "q4_0", "-o", str(tmp_path / "out.gguf")],
        stdout=subprocess.PIPE,
        stderr=child,
        env=environment,
        cwd=ROOT,
    ) as process:
        os.close(child)
        drawn = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            drawn += piece
        assert process.wait(timeout=300) == 0
    os.close(parent)
    text = drawn.decode()
    assert "convert" in text
    assert "quantize" in text
    assert "20/20" in text
    assert "bits per weight" in text


def test_the_source_is_named_as_elsewhere(tmp_path: Path) -> None:
    """By `~`, not by nothing, and not by what is no model; a folder that isn't there is none to write to."""
    write(tmp_path / "home" / "model")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [*COMMAND, "~/model", "--type", "f16", "-o", str(tmp_path / "x.gguf"), "-q"],
        capture_output=True, text=True, env=environment, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'x.gguf'}\n")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    for source in ("empty.gguf", "picture.png", "/dev/null", "", "missing.gguf"):
        verified = subprocess.run(
            [*COMMAND[:-1], "models", "verify", source],
            capture_output=True, text=True, cwd=tmp_path, timeout=600, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        done = called(source, folder=tmp_path)
        assert (done.returncode, done.stderr) == (verified.returncode, verified.stderr), source
    done = called(tmp_path / "home" / "model", "-o", f"{tmp_path}/nofolder/")
    assert done.returncode == 2
    assert f"there is no folder {tmp_path}/nofolder" in done.stderr
    assert not (tmp_path / "nofolder").exists()


def test_rows_that_a_type_does_not_fit_are_told_of(model: Path, tmp_path: Path) -> None:
    """The tiny model's rows are of 64 and 128 weights: none is a multiple of 256."""
    done = called(model, "--type", "q2_k", "-o", tmp_path / "x.gguf", "--json", "--no-eval")
    (text,) = json.loads(done.stdout)["notes"]
    odd = [one for one in verify_gguf(tmp_path / "x.gguf").tensors if one.type.name not in {"F32", "F16"}]
    assert odd
    assert text.startswith(f"{len(odd)} of ")
    for kind in {one.type.name for one in odd}:
        assert f"{sum(one.type.name == kind for one in odd)} {kind}" in text
    assert "became other types: " in text
