"""GGUF runs that are stopped, by Ctrl-C or by kill -9, and gone on with."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.gguf import read_header
from models.receipt import receipt_in
from quantize.importance import Wanted
from quantize.pipeline import Request, run
from quantize.plan import target_of
from quantize.progress import Stage, Step
from tests.oracles.gguf_bytes import without_receipt

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
