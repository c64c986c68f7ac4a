"""`edgechat quantize` with types and sizes: what is refused at once, what is shown, what is told in JSON."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from edgechat.cli.quantize_types import TYPES
from models.gguf import read_header
from quantize.plan import TARGETS
from tests.oracles.raw_checkpoint import write
from tests.quantize.test_cli import called

OFF = ("--imatrix", "off", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return write(tmp_path_factory.mktemp("tiny") / "model")


def test_the_help_names_every_type() -> None:
    """Once, and no other."""
    named = re.sub(r"\([^)]*\)|for models that were trained so:", "", TYPES)
    assert sorted(re.split(r"[,;\s]+", named.strip())) == sorted(TARGETS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tensor-type", "attn_v=q99"), "--tensor-type: there is no type 'q99': give one of f32, f16"),
        (("--output-tensor-type", "q4_k_m"), "--output-tensor-type q4_k_m: that is a mix for whole files"),
        (("--target-size", "much"), "--target-size 'much': an amount such as 4GB or 700MB belongs there"),
        (("--target-bpw", "0"), "--target-bpw 0: bits per weight such as 4.5 belong there"),
        (("--target-bpw", "4", "--target-size", "1GB"), "--target-size doesn't go with --target-bpw"),
        (("--target-bpw", "4", "--type", "q4_0"), "--type doesn't go with --target-bpw"),
        (("--to", "gptq", "--tensor-type", "attn_v=q8_0"), "--tensor-type doesn't go with --to gptq"),
        (("--to", "awq", "--target-size", "1GB"), "--target-size doesn't go with --to awq"),
    ],
)
def test_refusals(model: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """In one line, as wrong usage; those of a type before the source is looked for."""
    done = called(model, *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_mix_is_shown_and_told(model: Path, tmp_path: Path) -> None:
    """A row for each type; the same in JSON; the size is kept, with the receipt in the file."""
    done = called(model, "--target-size", "80kB", "--json", *OFF, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    path = tmp_path / "model-80KB.gguf"
    assert (record["path"], record["type"]) == (str(path), "80KB")
    assert record["bytes"] == path.stat().st_size <= 80_000
    expected: dict[str, list[int]] = {}
    for tensor in read_header(path).tensors:
        expected.setdefault(tensor.type.name, []).append(tensor.n_bytes)
    told = {row["type"]: (row["tensors"], row["bytes"]) for row in record["types"]}
    assert told == {name: (len(sizes), sum(sizes)) for name, sizes in expected.items()}
    for row in record["types"]:
        assert re.search(rf"^  {row['type']} +{row['tensors']} tensors? +[\d.]+ k?B$", done.stderr, re.M)


def test_no_torch_is_needed(model: Path, tmp_path: Path) -> None:
    """Neither for choosing nor for measuring."""
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise RuntimeError('torch is not to be imported')\n")
    output = tmp_path / "out.gguf"
    done = called_with(tmp_path, model, "--target-bpw", "6", "--no-eval", "-o", output, *OFF)
    assert done.returncode == 0, done.stderr


def called_with(first: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, where modules of a folder go before installed ones."""
    import os
    import sys

    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(first), str(root)))}
    command = [sys.executable, "-m", "edgechat", "quantize", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)
