"""The estimate from the header against llama.cpp's own dry run, and both against what a load takes."""

import re
from pathlib import Path

import msgspec
import pytest

from edgechat import hardware
from edgechat.errors import BrokenModelError, EdgechatError
from edgechat.library import estimate
from edgechat.library.dry_run import DryRunProcess, NoDryRun
from edgechat.library.needs import Needs
from edgechat.library.repack import copies
from edgechat.records import KVType, LoadSettings
from edgechat.runtimes.llamacpp import LlamaCppRuntime, attention, logs
from edgechat.runtimes.llamacpp.dry_run import LONGEST_MADE, DryRun, _Sizes
from models.ggml_types import GGMLType
from models.gguf import TensorInfo

MIB = 2**20
X86 = {"avx2"}
ARM = {"neon", "asimddp"}


def tensor(name: str, kind: GGMLType, *shape: int) -> TensorInfo:
    """One of which only name, type and shape matter; it has 1000 bytes."""
    return TensorInfo(name, shape, kind, offset=0, n_bytes=1000, record_offset=0)


@pytest.mark.parametrize(
    ("kind", "features", "rows", "copied"),
    [
        (GGMLType.Q4_0, X86, 8, True),
        (GGMLType.Q4_0, X86, 12, False),
        (GGMLType.Q4_0, ARM, 12, True),
        (GGMLType.Q4_K, X86, 8, True),
        (GGMLType.Q4_1, X86, 8, False),
        (GGMLType.Q6_K, X86, 8, False),
        (GGMLType.Q6_K, ARM, 8, True),
        (GGMLType.Q8_0, X86, 8, False),
        (GGMLType.Q8_0, ARM, 4, True),
        (GGMLType.Q2_K, X86, 8, False),
        (GGMLType.Q2_K, X86 | {"avx512f"}, 8, True),
        (GGMLType.Q4_0, set(), 8, False),
        (GGMLType.F16, X86, 8, False),
    ],
)
def test_which_types_are_copied(kind: GGMLType, features: set[str], rows: int, copied: bool) -> None:
    weights = [tensor("blk.0.ffn_up.weight", kind, 256, rows), tensor("output.weight", GGMLType.F32, 256, 8)]
    assert sum(copies(weights, features).values()) == (1000 if copied else 0)


def test_tables_that_are_looked_up_are_not_copied_unless_they_are_the_output_too() -> None:
    table, output = (
        tensor("token_embd.weight", GGMLType.Q4_0, 256, 64),
        tensor("output.weight", GGMLType.F16, 256, 64),
    )
    assert copies([table, output], X86) == {}
    assert copies([table], X86) == {table.name: 1000}
    experts = tensor("blk.0.ffn_up_exps.weight", GGMLType.Q4_0, 256, 64, 4)
    assert copies([experts, output], X86) == {experts.name: 1000}


@pytest.mark.parametrize(
    ("kind", "shape", "n_bytes"),
    [
        (GGMLType.Q4_1, (96, 64), 1000),
        (GGMLType.Q8_0, (96, 64), 1117),  # four more bytes for each block of 34
        (GGMLType.Q4_K, (256, 64), 1027),  # of 144
        (GGMLType.Q5_K, (256, 64), 1022),  # of 176
        (GGMLType.Q6_K, (256, 64), 1000),
        (GGMLType.IQ4_XS, (256, 64), 1014),  # two more for each of 136
        (GGMLType.F16, (16, 32), 1000),
        (GGMLType.Q6_K, (256, 48), 0),
        (GGMLType.Q6_K, (256, 64, 4), 0),  # experts
        (GGMLType.BF16, (256, 64), 0),
        (GGMLType.Q4_K, (256, 40), 1000),  # what AMX leaves is asked of the others
    ],
)
def test_what_the_matrix_unit_takes(kind: GGMLType, shape: tuple[int, ...], n_bytes: int) -> None:
    weights = [tensor("blk.0.ffn_up.weight", kind, *shape), tensor("output.weight", GGMLType.F32, 256, 8)]
    assert sum(copies(weights, X86 | {"avx512f", "amx_int8"}).values()) == n_bytes


def exact(path: Path, settings: LoadSettings) -> Needs:
    with DryRunProcess(path) as dry:
        needs = dry.ask(settings).needs
    assert needs is not None
    return needs


def near(one: int, other: int, share: float, mib: int) -> bool:
    return abs(one - other) <= max(share * other, mib * MIB)


def larger(dry: DryRun, settings: LoadSettings, patch: pytest.MonkeyPatch) -> Needs:
    """Of the two ways in which attention may be computed, the one that takes more."""
    found = []
    for faster in (True, False):
        patch.setattr(attention, "products_are_faster", lambda faster=faster: faster)
        needs = dry.needs(settings)
        assert needs is not None
        found.append(needs)
    return max(found, key=lambda needs: needs.compute)


@pytest.mark.parametrize("model", ["starter_gguf", "gemma_gguf"])
def test_the_estimate_is_near_to_the_dry_run(
    model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = request.getfixturevalue(model)
    parts = estimate.read_parts(path)
    with DryRun(path) as dry:
        for n_ctx in (512, 2048, 16384):
            for kv_type in ("f16", "q8_0", "q4_0"):
                for n_batch in (512, 128):
                    settings = LoadSettings(str(path), n_ctx=n_ctx, kv_type=kv_type, n_batch=n_batch)
                    said = larger(dry, settings, monkeypatch)
                    said = msgspec.structs.replace(said, engine=said.engine + estimate.ENGINE)
                    guess = estimate.estimate(parts, settings, hardware.cpu_features())
                    assert near(guess.kv, said.kv, 0.002, 0)
                    assert near(guess.compute, said.compute, 0.15, 2)
                    assert near(guess.output, said.output, 0.01, 0)
                    assert near(guess.engine, said.engine, 0.15, 0)
                    assert (guess.weights, guess.repacked, guess.cold) == (
                        said.weights,
                        said.repacked,
                        said.cold,
                    )
                    assert near(guess.scoring, said.scoring, 0.15, 2)
                    assert near(guess.peak, said.peak, 0.04, 0)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("model", ["starter_gguf", "gemma_gguf"])
def test_a_load_takes_the_buffers_that_were_planned(
    model: str, mapped: bool, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    settings = LoadSettings(str(path), n_ctx=1024, n_threads=1, kv_type="q8_0", use_mmap=mapped)
    needs = exact(path, settings)
    log = logs.capture()
    runtime = LlamaCppRuntime.load(settings)
    lines = log.lines
    runtime.close()
    kv = sum(_mib(line) for line in lines if " KV buffer size" in line)
    repacked = sum(_mib(line) for line in lines if re.search("(CPU_REPACK|AMX) model buffer size", line))
    plain = sum(_mib(line) for line in lines if re.search(r" CPU(_Mapped)? model buffer size", line))
    assert near(needs.kv, int(kv * MIB), 0.001, 0)
    assert abs(needs.repacked - repacked * MIB) < 0.02 * MIB
    assert abs(needs.weights - plain * MIB) < MIB
    compute = sum(_mib(line) for line in lines if "compute buffer size" in line)
    assert needs.compute <= compute * MIB <= needs.compute + needs.scoring


def _mib(line: str) -> float:
    match = re.search(r"=\s*([\d.]+) MiB", line)
    assert match is not None
    return float(match[1])


@pytest.mark.parametrize("model", ["starter_gguf", "gemma_gguf"])
@pytest.mark.parametrize("kv_type", ["f16", "q4_0"])
def test_of_long_contexts_is_said_what_making_them_says(
    model: str, kv_type: KVType, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    made: list[int] = []

    class Watched(DryRun):
        def _made(self, settings: LoadSettings, n_ctx: int, **how: bool) -> _Sizes | None:
            made.append(n_ctx)
            return super()._made(settings, n_ctx, **how)

    with Watched(path) as dry:
        for n_ctx in (LONGEST_MADE + 256, 2**20, 2**24):
            settings = LoadSettings(str(path), n_ctx=n_ctx, kv_type=kv_type)
            sizes = dry._sizes(settings, few_outputs=True)
            assert max(made) == LONGEST_MADE  # longer ones take seconds
            if n_ctx < 2**24:
                real = DryRun._made(dry, settings, n_ctx, few_outputs=True, on_gpu=False)
                assert sizes is not None
                assert real is not None
                assert sizes.rows == real.rows
                for name in ("kv", "compute", "output"):
                    assert abs(getattr(sizes, name) - getattr(real, name)) < 0.05 * MIB  # the log has 0.01


def test_without_mapping_nothing_is_cold(gemma_gguf: Path) -> None:
    settings = LoadSettings(str(gemma_gguf), n_ctx=512)
    mapped = exact(gemma_gguf, settings)
    read = exact(gemma_gguf, msgspec.structs.replace(settings, use_mmap=False))
    assert mapped.cold > 0
    assert mapped.repacked == read.repacked > 0
    assert read.cold == 0
    # The table of tokens, where it is the output matrix, too: copied, and looked up beside that.
    table = next(one for one in estimate.read_parts(gemma_gguf)[0].tensors if one.name == "token_embd.weight")
    twice = table.n_bytes if read.weights > table.n_bytes else 0
    assert abs(read.held - mapped.held - twice) < 3 * MIB


def test_a_model_that_can_not_be_loaded_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF not really")
    with DryRunProcess(path) as dry, pytest.raises(BrokenModelError):
        dry.ask(LoadSettings(str(path)))
    with DryRunProcess(tmp_path / "none.gguf") as dry, pytest.raises(EdgechatError):
        dry.ask(LoadSettings(str(path)))


def test_a_process_that_does_not_answer_is_given_up(
    starter_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DryRunProcess(starter_gguf, timeout_s=0.01) as dry, pytest.raises(NoDryRun):
        dry.ask(LoadSettings(str(starter_gguf)))
    monkeypatch.setattr("edgechat.library.dry_run.MODULE", "edgechat.no_such_module")
    with DryRunProcess(starter_gguf) as dry, pytest.raises(NoDryRun):
        dry.ask(LoadSettings(str(starter_gguf)))
