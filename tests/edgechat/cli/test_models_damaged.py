"""Damaged and hostile files reach `edgechat models verify`: one line, the right code, no crash, no hang."""

import collections
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgechat.cli import app
from tests.oracles.damaged_gguf import Damaged, damaged_files
from tests.oracles.gguf_changes import ANY

SECONDS_A_FILE = 20.0
"""A bound against hanging, not a claim of speed."""


@pytest.mark.timeout(900)
def test_every_damaged_file_gets_one_line(
    tmp_path: Path, starter_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: collections.Counter[int] = collections.Counter()
    certain = 0
    for damaged in damaged_files(starter_gguf):
        path = damaged.write(tmp_path)
        start = time.monotonic()
        code = app.main(["models", "verify", str(path)])
        assert time.monotonic() - start < SECONDS_A_FILE, damaged.name
        out, err = capsys.readouterr()
        assert code in damaged.codes, (damaged.name, code, out, err)
        if code:
            assert out == "", damaged.name
            assert err.startswith("edgechat: "), damaged.name
            assert err.count("\n") == 1, damaged.name
            assert str(path) in err, damaged.name
            assert err.isprintable() or err[:-1].isprintable(), damaged.name
        codes[code] += 1
        certain += damaged.codes != ANY
        path.unlink()
    assert codes.total() >= 400
    assert certain >= 250
    rejected = 1 - codes[0] / codes.total()
    assert rejected >= 0.9, codes


def _sample(starter: Path, names: set[str]) -> list[Damaged]:
    return [damaged for damaged in damaged_files(starter) if damaged.name in names]


def test_in_a_process_of_its_own(tmp_path: Path, starter_gguf: Path) -> None:
    names = {
        "cut-tiny-0",
        "file-tensors-2^63",
        "file-string-2^64-9",
        "tensor-product-2^66-wraps-to-0",
        "token-twice",
    }
    sample = _sample(starter_gguf, names)
    assert len(sample) == len(names)
    for damaged in sample:
        path = damaged.write(tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "edgechat", "models", "verify", str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (4, ""), damaged.name
        assert done.stderr.startswith(f"edgechat: {path}")
        assert done.stderr.count("\n") == 1


@pytest.mark.timeout(600)
def test_what_passes_does_not_crash_when_loaded(
    tmp_path: Path, starter_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files that a header can't give away: llama.cpp refuses them, or runs them."""
    names = {"flip-tiny-21", "flip-tiny-40", "flip-real-1", "gemma-keys-17"}
    seen = collections.Counter()
    for damaged in _sample(starter_gguf, names):
        path = damaged.write(tmp_path)
        assert app.main(["models", "verify", str(path)]) == 0, damaged.name
        capsys.readouterr()
        code = app.main(["models", "verify", "--load", str(path)])
        out, err = capsys.readouterr()
        assert (out + err).count("\n") == 1
        assert "crash" not in err
        seen[code] += 1
    assert seen == {0: 2, 4: 2}
