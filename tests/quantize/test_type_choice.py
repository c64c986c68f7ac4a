"""Runs with types of single tensors, and for a size: what the file holds in the end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.checkpoint import GGUFCheckpoint
from models.ggml_types import BLOCKS, GGMLType
from models.gguf import read_header
from quantize.budget import Budget, bpw_budget
from quantize.errors import BadRequest
from quantize.imatrix import Entry, ImportanceMatrix
from quantize.importance import Wanted
from quantize.pipeline import Request, Result, run
from quantize.plan import target_of
from quantize.progress import Stage, Step
from quantize.tensor_types import Part, override, part_override
from quantize.type_choice import Wishes
from tests.oracles.llama_reference import loaded
from tests.oracles.raw_checkpoint import write_wide


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in float32, whose ffn_down has rows of 256."""
    return write_wide(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def gguf(folder: Path) -> Path:
    """The same as a GGUF file in float16."""
    return run(Request(folder, target_of("f16"), folder.parent / "tiny.gguf")).path


def made(source: Path, output: Path, wishes: Wishes, kind: str = "q4_0", **more: object) -> Result:
    """A run with one thread."""
    target = wishes.budget.target if wishes.budget is not None else replace(target_of(kind), direct=None)
    request = Request(source, target, output, force=True, threads=1, wishes=wishes, **more)  # type: ignore[arg-type]
    return run(request)


def types_in(path: Path) -> dict[str, str]:
    """Of the matrices."""
    return {one.name: one.type.name for one in read_header(path).tensors if len(one.shape) > 1}


def test_types_of_single_tensors(folder: Path, gguf: Path, tmp_path: Path) -> None:
    """Of a folder and of a GGUF file; all others are of the file's type; the file runs."""
    wishes = Wishes(
        (
            override("attn_v=q8_0"),
            override(r"blk\.1\.ffn_(up|gate)=f16"),
            override("ffn_down=iq4_xs"),
            part_override(Part.EMBEDDING, "q5_1"),
        )
    )
    for source in (folder, gguf):
        result = made(source, tmp_path / "out.gguf", wishes)
        kinds = types_in(result.path)
        assert {kinds.pop(f"blk.{i}.attn_v.weight") for i in (0, 1)} == {"Q8_0"}
        assert {kinds.pop(f"blk.1.ffn_{name}.weight") for name in ("up", "gate")} == {"F16"}
        assert {kinds.pop(f"blk.{i}.ffn_down.weight") for i in (0, 1)} == {"IQ4_XS"}
        assert kinds.pop("token_embd.weight") == "Q5_1"
        assert set(kinds.values()) == {"Q4_0"}
        assert result.notes == ()
        assert result.mix is None
        with loaded(result.path, 64) as reference:
            assert np.isfinite(reference.logits([1, 2, 3])).all()
    everything = made(folder, tmp_path / "out.gguf", Wishes((override(".=f16"),)), "q8_0")
    assert set(types_in(everything.path).values()) == {"F16"}


def test_a_type_that_rows_do_not_fit(folder: Path, tmp_path: Path) -> None:
    """Becomes llama.cpp's other choice, and that is said."""
    result = made(folder, tmp_path / "out.gguf", Wishes((override(r"blk\.0\.attn_q=q6_k"),)))
    assert result.notes == ("blk.0.attn_q.weight became Q8_0 (Q6_K needs rows of 256)",)
    assert types_in(result.path)["blk.0.attn_q.weight"] == "Q8_0"


def test_types_for_models_that_were_trained_so(folder: Path, tmp_path: Path) -> None:
    """Are written, and it is said what they are for."""
    result = made(folder, tmp_path / "out.gguf", Wishes(), "tq2_0")
    assert result.notes[-1] == "TQ2_0 is for models that were trained to it: little is left of others"
    assert types_in(result.path)["blk.0.ffn_down.weight"] == "TQ2_0"


def test_refusals_leave_nothing(folder: Path, gguf: Path, tmp_path: Path) -> None:
    """Before the weights are read."""
    cases = {
        "matches no tensor": Wishes((override("attn_x=q8_0"),)),
        "needs an importance matrix": Wishes((override("ffn_down=iq2_xs"),)),
        "is too small: ": Wishes(budget=Budget(n_bytes=10_000)),
        "more than the source has": Wishes(budget=bpw_budget(20)),
    }
    for message, wishes in cases.items():
        for source in (folder, gguf):
            with pytest.raises(BadRequest, match=message):
                made(source, tmp_path / "out.gguf", wishes)
    with pytest.raises(BadRequest, match=r"needs a quantized --type: .* give --type q8_0, and --tensor-type"):
        made(folder, tmp_path / "out.gguf", Wishes((override("attn_v=q8_0"),)), "f16")
    with pytest.raises(BadRequest, match=r"--type q1_0: .* has rows of 64, which blocks of 128 don't fill"):
        made(folder, tmp_path / "out.gguf", Wishes(), "q1_0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_size_is_kept(folder: Path, gguf: Path, tmp_path: Path, is_folder: bool) -> None:
    """To the byte; the source is as it was; the stages are told; what was chosen is listed."""
    source = folder if is_folder else gguf
    before = gguf.read_bytes()
    told: list[Step] = []
    budget = Budget(n_bytes=130_000)
    request = Request(source, budget.target, tmp_path, threads=1, wishes=Wishes(budget=budget))
    result = run(request, told.append)
    assert gguf.read_bytes() == before
    assert result.path.name.endswith("-130KB.gguf")
    assert result.path.stat().st_size == result.n_bytes
    assert 125_000 < result.n_bytes <= 130_000
    assert [path.name for path in tmp_path.iterdir()] == [result.path.name]
    measured = [step for step in told if step.stage is Stage.MEASURE]
    assert [step.index for step in measured] == list(range(1, measured[0].total + 1))
    assert result.mix is not None
    kinds = types_in(result.path)
    assert kinds == {name: kind.name for name, kind in result.mix.types.items()}
    header = read_header(result.path)
    assert {share.type: share.n_bytes for share in result.types} == {
        kind.name: sum(one.n_bytes for one in header.tensors if one.type is kind)
        for kind in {one.type for one in header.tensors}
    }
    with loaded(result.path, 64) as reference:
        assert np.isfinite(reference.logits([1, 2, 3])).all()


@given(share=st.floats(0, 1))
@settings(
    deadline=None,
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_bits_per_weight_are_kept(gguf: Path, tmp_path: Path, share: float) -> None:
    """As `models show` counts them: the bytes of all tensors, over all weights."""
    bits = 4.9 + share * 10
    result = made(gguf, tmp_path / "out.gguf", Wishes(budget=bpw_budget(bits)))
    tensors = read_header(result.path).tensors
    n_bytes = sum(one.n_elements // BLOCKS[one.type].elements * BLOCKS[one.type].n_bytes for one in tensors)
    assert 8 * n_bytes / sum(one.n_elements for one in tensors) <= bits
    assert result.bits_per_weight <= bits


def test_a_quantized_source(gguf: Path, tmp_path: Path) -> None:
    """Nothing gets more bits than it has; what keeps its type keeps its bytes; the source is as it was."""
    source = run(Request(gguf, target_of("q8_0"), tmp_path / "source.gguf")).path
    before = source.read_bytes()
    result = made(source, tmp_path / "out.gguf", Wishes(budget=bpw_budget(7.5)))
    assert source.read_bytes() == before
    assert "a second quantization costs quality" in result.notes[0]
    kinds = types_in(result.path)
    assert max(BLOCKS[GGMLType[kind]].bits_per_weight for kind in kinds.values()) == 8.5
    assert result.bits_per_weight <= 7.5
    with GGUFCheckpoint(source) as old, GGUFCheckpoint(result.path) as new:
        kept = [name for name, kind in kinds.items() if kind == "Q8_0"]
        assert all(np.array_equal(old.stored_rows(name), new.stored_rows(name)) for name in kept)


def test_a_named_tensor_is_left_to_the_person(folder: Path, tmp_path: Path) -> None:
    """The others make up for it."""
    wishes = Wishes((part_override(Part.OUTPUT, "q8_0"),), bpw_budget(6))
    result = made(folder, tmp_path / "out.gguf", wishes)
    assert types_in(result.path)["token_embd.weight"] == "Q8_0"
    assert result.bits_per_weight <= 6


def test_with_an_importance_matrix(folder: Path, tmp_path: Path) -> None:
    """Its keys count too, and small I types come into question."""
    entries = {}
    for i in range(2):
        for name, columns in (("attn_q", 64), ("attn_k", 64), ("attn_v", 64), ("attn_output", 64)):
            entries[f"blk.{i}.{name}.weight"] = _entry(columns)
        for name, columns in (("ffn_up", 64), ("ffn_gate", 64), ("ffn_down", 256)):
            entries[f"blk.{i}.{name}.weight"] = _entry(columns)
    matrix = ImportanceMatrix(entries, ("a text",), 7, 512)
    matrix.write(tmp_path / "imatrix.gguf")
    least = Budget(n_bytes=10_000)
    importance = Wanted(tmp_path / "imatrix.gguf")
    with pytest.raises(BadRequest, match="is too small") as caught:
        made(folder, tmp_path / "out.gguf", Wishes(budget=least), importance=importance)
    n_least = int(str(caught.value).split("(")[1].split()[0])
    budget = Budget(n_bytes=n_least + 8_000)
    result = made(folder, tmp_path / "out.gguf", Wishes(budget=budget), importance=importance)
    assert n_least < result.n_bytes <= n_least + 8_000
    named = Wishes((override("ffn_down=iq2_xxs"),))
    kinds = types_in(made(folder, tmp_path / "out.gguf", named, importance=importance).path)
    assert kinds["blk.1.ffn_down.weight"] == "IQ2_XXS"


def _entry(columns: int) -> Entry:
    sums = np.abs(np.random.default_rng(columns).standard_normal((1, columns))).astype(np.float32) + 0.1
    return Entry(sums * 512, np.full(1, 512, np.float32))
