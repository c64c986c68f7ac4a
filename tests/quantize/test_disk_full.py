"""A disk that really fills up in the middle of a run: a small file system in memory, mounted for us alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ISOLATE = ["unshare", "--map-root-user", "--mount"]

DRIVER = """
import shutil, subprocess, sys
from pathlib import Path

kind, source, place, undisturbed = sys.argv[1], *map(Path, sys.argv[2:])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], check=True)
filler = place / "somebody-else"


def fill():
    # All but a few blocks, as a download beside us would.
    free = shutil.disk_usage(place).free
    filler.write_bytes(bytes(max(0, free - 40_000)))


from edgechat.cli.failures import report
from quantize.errors import NotEnoughDisk
from tests.oracles.gguf_bytes import without_receipt

if kind in {"f16", "q4_0"}:
    from quantize import native
    from quantize.pipeline import Request, run
    from quantize.plan import target_of

    filled = []
    by_llama = native.run

    def filled_before(order, tell):
        # Its process doesn't wait for what is done when it tells of a tensor.
        if not order.dry_run and not filled:
            fill()
            filled.append(order)
        by_llama(order, tell)

    native.run = filled_before

    def progress(step):
        if kind == "f16" and step.index == 2 and not filler.exists():
            fill()

    def attempt(told):
        return run(Request(source, target_of(kind), place / "out.gguf", threads=1), told)
else:
    from quantize.layers import LayerRequest, Silent, run
    from quantize.recipe import Format, Method, Recipe

    class Progress(Silent):
        def layer(self, step):
            if step.layer == 2 and not filler.exists():
                fill()

    def attempt(told):
        recipe = Recipe(Format(kind), Method(kind))
        return run(LayerRequest(source, recipe, place / "out", samples=40, length=64, evaluated=False,
                                threads=1, resume=told is None), told)

    progress = Progress()

try:
    attempt(progress)
except NotEnoughDisk as error:
    print(report(error), error)
    stop = error
else:
    raise SystemExit("it did not fill up")
left = sorted(path.name for path in place.iterdir() if path != filler)
notes = getattr(stop, "__notes__", [])
assert [f"{place}/.out.unfinished: the same command with --resume goes on" in note for note in notes] == [
    True for _ in left
], notes
assert left in ([], [".out.unfinished"]), left
assert not list(place.rglob("config.json")), "a folder that looks finished"
filler.unlink()
if kind in {"f16", "q4_0"}:
    result = attempt(lambda step: None)
    assert without_receipt(result.path) == without_receipt(undisturbed)
else:
    result = attempt(None)
    assert any(note.startswith("going on after layer") for note in result.notes), result.notes
    for path in undisturbed.iterdir():
        if path.name != "edgechat-receipt.json":
            assert (result.path / path.name).read_bytes() == path.read_bytes(), path.name
assert sorted(path.name for path in place.iterdir()) == [result.path.name]
print("went on")
"""


def isolated() -> bool:
    """Whether a file system can be mounted here, for us alone."""
    try:
        command = [*ISOLATE, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
        return not subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
    except OSError:
        return False


@pytest.mark.oracle
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["f16", "q4_0", "gptq", "awq"])
def test_a_disk_that_fills_up(kind: str, tiny_folder: Path, tmp_path: Path) -> None:
    """One line and exit code 5, nothing that looks finished; with room again the same bytes come."""
    if not isolated():
        pytest.skip("no namespaces, so no small file system")
    if kind in {"f16", "q4_0"}:
        from quantize.pipeline import Request, run
        from quantize.plan import target_of

        undisturbed = run(Request(tiny_folder, target_of(kind), tmp_path / "out.gguf", threads=1)).path
    else:
        from quantize.layers import LayerRequest
        from quantize.layers import run as quantized
        from quantize.recipe import Format, Method, Recipe

        recipe = Recipe(Format(kind), Method(kind))
        request = LayerRequest(
            tiny_folder, recipe, tmp_path / "out", samples=40, length=64, evaluated=False, threads=1
        )
        undisturbed = quantized(request).path
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run(
        [*ISOLATE, sys.executable, "-c", DRIVER, kind, str(tiny_folder), str(place), str(undisturbed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("5 ")
    assert "is full" in first
    assert "make room" in first
    assert last == "went on"
