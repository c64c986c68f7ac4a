"""What a run is said to take, and what is said where that is not there."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from quantize.errors import NotEnoughDisk, NotEnoughMemory
from quantize.layer_memory import Work, groups, memory_of
from quantize.layers import LayerRequest, run
from quantize.recipe import Format, Method, Recipe

GPTQ = Recipe(Format.GPTQ, Method.GPTQ, group_size=128)
LAYER = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
}


def test_matrices_that_see_the_same_input_are_solved_as_one() -> None:
    """Queries, keys and values; gate and up; each expert's by itself."""
    assert groups(LAYER) == [(128, 64), (64, 64), (256, 64), (64, 128)]
    experts = {
        f"mlp.experts.{i}.{kind}": shape
        for i in range(2)
        for kind, shape in (("gate_proj", (8, 4)), ("up_proj", (8, 4)), ("down_proj", (4, 8)))
    }
    assert groups(experts) == [(16, 4), (4, 8), (16, 4), (4, 8)]


@pytest.mark.oracle
def test_more_of_anything_takes_more(tiny_folder: Path) -> None:
    """Samples where they stay in memory, and not where they don't; the comparison; the tokenizer."""
    from models.weights import open_weights

    with open_weights(tiny_folder) as weights:
        config = weights.config
    work = Work(GPTQ, tokens=65_536, length=512, evaluated=5120, tokenizer_bytes=10**6)
    memory = memory_of(config, LAYER, 2, work)
    assert memory.states == 65_536 * 64 * 4
    assert memory.kept == 65_536 * 128 * 4
    least = memory.peak(in_memory=False)
    double = memory_of(config, LAYER, 2, replace(work, tokens=131_072))
    assert double.peak(in_memory=False) == least
    assert double.states == 2 * memory.states
    assert memory_of(config, LAYER, 2, replace(work, evaluated=0)).comparing == 0
    larger = memory_of(config, LAYER, 2, replace(work, tokenizer_bytes=30 * 10**6))
    assert larger.layers - memory.layers == pytest.approx(9.5 * 29 * 10**6)
    everything = memory.layers + memory.states + memory.kept
    assert memory.peak(in_memory=True, kept=memory.kept) == max(everything, memory.comparing)
    assert memory.peak(in_memory=True) == max(memory.layers + memory.states, memory.comparing) >= least
    assert memory.room(10**12) == memory.room(everything) == memory.kept
    assert memory.room(everything - 1000) == memory.kept - 1000
    assert memory.room(memory.layers) == 0
    own = memory_of(config, LAYER, 2, replace(work, own_text=10**9))
    assert own.writing > 10**9
    assert own.peak(in_memory=False) == own.writing


@pytest.mark.oracle
@pytest.mark.timeout(600)
def test_what_would_fit_fits(tiny_folder: Path, tmp_path: Path) -> None:
    """Where memory is short, the line names a way, and that way is accepted."""
    import re

    request = LayerRequest(tiny_folder, Recipe(), tmp_path / "out", samples=4, length=32, threads=1)
    with pytest.raises(NotEnoughMemory, match=r"it takes .* at least with .*: --max-memory \d+MB") as found:
        run(replace(request, max_memory=10_000_000))
    least = re.search(r"--max-memory (\d+)MB", str(found.value))
    assert least is not None
    limit = int(least[1]) * 10**6
    with pytest.raises(NotEnoughMemory, match="--method rtn --no-eval would take"):
        run(replace(request, max_memory=limit))
    rtn = Recipe(Format.GPTQ, Method.RTN)
    assert run(replace(request, recipe=rtn, evaluated=False, max_memory=limit)).path.is_dir()


@pytest.mark.oracle
def test_the_application_says_what_is_free(tiny_folder: Path, tmp_path: Path) -> None:
    """It knows of limits of containers; nothing is begun where they are too narrow."""
    request = LayerRequest(tiny_folder, Recipe(), tmp_path / "out", samples=4, length=32, threads=1)
    with pytest.raises(NotEnoughMemory, match=r"12\.3 MB to be had: it takes .* at least .*: free that much"):
        run(replace(request, free_memory=lambda: 12_345_678))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oracle
def test_so_many_samples_as_the_disk_has_room_for(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of samples lie on the disk twice: fewer of them fit, and that many are taken."""
    import re

    request = LayerRequest(tiny_folder, Recipe(), tmp_path / "out", samples=40, length=64, threads=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_200_000))
    with pytest.raises(NotEnoughDisk) as found:
        run(request)
    fitting = re.search(r"or take --samples (\d+)", str(found.value))
    assert fitting is not None, str(found.value)
    count = int(fitting[1])
    assert 0 < count < 40
    run(replace(request, samples=count, evaluated=False))
    with pytest.raises(NotEnoughDisk):
        run(replace(request, samples=count + 1, force=True))
