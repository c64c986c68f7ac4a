"""Quantizing with an importance matrix: made by default, read, written, refused; and it lowers the error."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import BrokenModelFile
from models.gguf import GGMLType, read_header
from models.receipt import receipt_in
from quantize import imatrix_native, importance, native
from quantize.errors import BadRequest, NativeFailure, NotEnoughMemory, SourceNotFound
from quantize.imatrix import ImportanceMatrix
from quantize.importance import Wanted
from quantize.pipeline import Request, run
from quantize.plan import TARGETS, target_of
from quantize.progress import Stage, Step
from quantize.tensor_types import Override, Part
from quantize.type_choice import Wishes
from tests.oracles.llama_reference import loaded
from tests.oracles.raw_checkpoint import write

pytestmark = [pytest.mark.timeout(300)]

SMALL = Wanted(samples=2, length=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return write(tmp_path_factory.mktemp("importance") / "model")


@pytest.fixture(scope="module")
def gguf(folder: Path) -> Path:
    """The same as a GGUF file in float32."""
    return run(Request(folder, target_of("f32"), folder.parent / "f32.gguf")).path


@pytest.fixture(scope="module")
def matrix(gguf: Path) -> Path:
    """Its importance matrix, as a file."""
    path = gguf.with_name("imatrix.gguf")
    wanted = Wanted(file=path, samples=4, length=64)
    run(Request(gguf, target_of("q4_0"), gguf.with_name("by.gguf"), threads=1, importance=wanted))
    return path


def test_llama_cpp_makes_one_of_a_gguf_file(gguf: Path, tmp_path: Path) -> None:
    """The plan is said first, each sample is told, the metadata note it as llama.cpp's tool does."""
    steps: list[Step] = []
    said: list[str] = []
    request = Request(gguf, target_of("q4_0"), tmp_path / "out.gguf", threads=1, importance=SMALL)
    result = run(request, steps.append, said.append)
    assert [line.partition(", about")[0] for line in said] == [
        "plan: an importance matrix over 2 x 64 tokens (bundled)"
    ]
    assert "--imatrix off does without" in said[0]
    seen = [step for step in steps if step.stage is Stage.CALIBRATE]
    assert [step.index for step in seen] == [0, 0, 1, 2]
    assert [step.done_bytes for step in seen] == [0, 0, 64, 128]
    header = read_header(result.path)
    assert header.metadata["quantize.imatrix.dataset"] == "bundled"
    assert header.metadata["quantize.imatrix.entries_count"] == 14
    assert header.metadata["quantize.imatrix.chunks_count"] == 2
    assert "quantize.imatrix.file" not in header.metadata
    assert result.importance is not None
    assert result.importance["by"] == "llama.cpp"
    receipt = receipt_in(header)
    assert receipt is not None
    assert receipt["calibration"] == dict(result.importance)
    assert receipt["recipe"]["importance_matrix"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("of", ["folder", "gguf"])
def test_the_model_writes_the_text_itself(of: str, folder: Path, gguf: Path, tmp_path: Path) -> None:
    """Its writing is told before the samples are; a seed's texts are the same again, another's differ."""
    source = {"folder": folder, "gguf": gguf}[of]

    def made(name: str, seed: int) -> tuple[ImportanceMatrix, list[Step], list[str]]:
        steps: list[Step] = []
        said: list[str] = []
        file = tmp_path / f"{name}.imatrix.gguf"
        wanted = Wanted(file, samples=2, length=64, self_seed=seed)
        request = Request(source, target_of("q4_0"), tmp_path / f"{name}.gguf", threads=1, importance=wanted)
        result = run(request, steps.append, said.append)
        assert result.importance is not None
        assert result.importance["source"] == f"self, seed {seed}"
        assert result.importance["by"] == "llama.cpp"
        return ImportanceMatrix.read(file), steps, said

    one, steps, said = made("one", 1)
    assert [line.partition(", about")[0] for line in said] == [
        "plan: an importance matrix over 2 x 64 tokens (the model's own text)"
    ]
    stages = list(dict.fromkeys(step.stage for step in steps))
    assert stages.index(Stage.WRITE) < len(stages) - 1 - stages[::-1].index(Stage.QUANTIZE)
    written = [step for step in steps if step.stage is Stage.WRITE]
    assert (written[-1].index, written[-1].total) == (2, 2)
    assert [step.index for step in steps if step.stage is Stage.CALIBRATE][-2:] == [1, 2]
    assert one.datasets == ("self, seed 1",)
    again, other = made("again", 1)[0], made("other", 2)[0]
    for name, entry in one.entries.items():
        np.testing.assert_array_equal(entry.sums, again.entries[name].sums)
    assert any((entry.sums != other.entries[name].sums).any() for name, entry in one.entries.items())
    assert (tmp_path / "one.gguf").read_bytes() != (tmp_path / "other.gguf").read_bytes()


@pytest.mark.oracle
def test_torch_makes_one_of_a_folder(tiny_folder: Path, tmp_path: Path) -> None:
    """And writes the file that is not there; the file that is there is read, and gives the same weights."""
    file = tmp_path / "imatrix.gguf"
    said: list[str] = []
    wanted = Wanted(file=file, samples=2, length=64)
    request = Request(tiny_folder, target_of("q4_0"), tmp_path / "a.gguf", threads=1, importance=wanted)
    made = run(request, say=said.append)
    assert made.importance is not None
    assert made.importance["by"] == "torch"
    assert f"written to {file}" in said[0]
    assert ImportanceMatrix.read(file).chunk_count == 2
    read = run(
        Request(
            tiny_folder,
            target_of("q4_0"),
            tmp_path / "b.gguf",
            threads=1,
            importance=Wanted(file=file),
        ),
        say=said.append,
    )
    assert len(said) == 1
    assert read.importance == {"by": "file", "file": "imatrix.gguf", "texts": ["bundled"]}
    assert read_header(read.path).metadata["quantize.imatrix.file"] == "imatrix.gguf"
    assert data_of(made.path) == data_of(read.path)
    without = run(Request(tiny_folder, target_of("q4_0"), tmp_path / "c.gguf", threads=1))
    assert data_of(without.path) != data_of(made.path)


def data_of(path: Path) -> bytes:
    """A file's weights."""
    return path.read_bytes()[read_header(path).data_offset :]


def test_without_torch_a_folder_goes_through_llama_cpp(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is converted first."""
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    steps: list[Step] = []
    request = Request(folder, target_of("q4_k_m"), tmp_path / "out.gguf", threads=1, importance=SMALL)
    result = run(request, steps.append)
    assert result.importance is not None
    assert result.importance["by"] == "llama.cpp"
    stages = list(dict.fromkeys(step.stage for step in steps))
    assert stages == [Stage.CONVERT, Stage.CALIBRATE, Stage.QUANTIZE, Stage.CHECK]


NEEDY = [name for name, target in TARGETS.items() if target.needs_imatrix]


@pytest.mark.parametrize("kind", NEEDY)
def test_types_that_need_one(gguf: Path, matrix: Path, tmp_path: Path, kind: str) -> None:
    """They are refused without, and work with one."""
    with pytest.raises(BadRequest, match=f"{kind} needs an importance matrix: leave out --imatrix off"):
        run(Request(gguf, target_of(kind), tmp_path / "out.gguf"))
    result = run(
        Request(gguf, target_of(kind), tmp_path / "out.gguf", threads=1, importance=Wanted(file=matrix))
    )
    assert read_header(result.path).metadata["general.file_type"] == target_of(kind).ftype
    with loaded(result.path, 64) as reference:
        assert np.isfinite(reference.logits([1, 2, 3])).all()


def test_it_lowers_the_error_where_inputs_are_large(gguf: Path, matrix: Path, tmp_path: Path) -> None:
    """The weighted error of each matrix is what llama.cpp minimizes: over all it must come down."""
    from models.checkpoint import open_checkpoint

    weights = ImportanceMatrix.read(matrix)
    kind = target_of("q4_0")
    off = run(Request(gguf, kind, tmp_path / "off.gguf", threads=1)).path
    on = run(Request(gguf, kind, tmp_path / "on.gguf", threads=1, importance=Wanted(file=matrix))).path
    errors = []
    with open_checkpoint(gguf) as source:
        for path in (off, on):
            with open_checkpoint(path) as result:
                error = 0.0
                for name in weights.entries:
                    importance_of = weights.weights(name)
                    difference = result.rows(name) - source.rows(name)
                    error += float((np.square(difference) * importance_of).sum())
                errors.append(error)
    assert errors[1] < 0.95 * errors[0]


def test_of_another_model(gguf: Path, matrix: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    read = ImportanceMatrix.read(matrix)
    other = {name.replace("blk.1.", "blk.7."): entry for name, entry in read.entries.items()}
    ImportanceMatrix(other).write(tmp_path / "other.gguf")
    wanted = Wanted(file=tmp_path / "other.gguf")
    with pytest.raises(
        BadRequest, match=r"other\.gguf is of another model: it has blk\.7\.attn_k\.weight, which this"
    ):
        run(Request(gguf, target_of("q4_0"), tmp_path / "out.gguf", importance=wanted))
    (tmp_path / "other.gguf").write_bytes(matrix.read_bytes()[:2000])
    with pytest.raises(BrokenModelFile, match=r"other\.gguf"):
        run(Request(gguf, target_of("q4_0"), tmp_path / "out.gguf", importance=wanted))
    assert [path.name for path in tmp_path.iterdir()] == ["other.gguf"]


def test_what_does_not_go_together(gguf: Path, matrix: Path, tmp_path: Path) -> None:
    """Said before anything is read."""
    output = tmp_path / "out.gguf"

    def refused(kind: str, wanted: Wanted, said: str, error: type[Exception] = BadRequest) -> None:
        with pytest.raises(error, match=said):
            run(Request(gguf, target_of(kind), output, importance=wanted))

    refused("q8_0", Wanted(file=matrix), "--imatrix doesn't go with --type q8_0: an importance matrix is for")
    refused("f16", Wanted(samples=4), "--samples doesn't go with --type f16")
    refused(
        "q4_0", Wanted(file=matrix, samples=4), r"imatrix\.gguf is there and will be read: --samples doesn't"
    )
    nowhere = tmp_path / "nowhere"
    refused("q4_0", Wanted(file=nowhere / "x.gguf"), "and no folder to write it to", SourceNotFound)
    refused(
        "q4_0", Wanted(calibration=nowhere), "--calibration takes a .txt or a .jsonl file", SourceNotFound
    )
    refused("q4_0", Wanted(length=512), "--sequence-length 512 is more than the model's context of 128")


def test_the_default_fits_a_short_context(gguf: Path, tmp_path: Path) -> None:
    """Of 128 tokens."""
    said: list[str] = []
    request = Request(gguf, target_of("q4_0"), tmp_path / "out.gguf", threads=1, importance=Wanted())
    result = run(request, say=said.append)
    assert said[0].startswith("plan: an importance matrix over 16 x 128 tokens (bundled), about ")
    assert result.importance is not None
    assert result.importance["tokens_each"] == 128


def test_what_it_is_for() -> None:
    """Types below 8 bits: of the file, or of some of its tensors."""
    eight = target_of("q8_0")
    assert importance.is_for(target_of("q6_k"), Wishes())
    assert not importance.is_for(eight, Wishes())
    assert importance.is_for(eight, Wishes((Override(Part.PATTERN, GGMLType.Q4_K, "ffn"),)))
    assert not importance.is_for(eight, Wishes((Override(Part.PATTERN, GGMLType.F16, "ffn"),)))


def test_where_it_cannot_be_made(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the model is quantized without one, and that is said; not so where a type needs one, or one
    was asked for."""

    def fail(*order: object) -> None:
        raise NativeFailure("llama.cpp can't load it")

    monkeypatch.setattr(imatrix_native, "collect", fail)
    result = run(Request(gguf, target_of("q4_0"), tmp_path / "out.gguf", threads=1, importance=Wanted()))
    assert result.importance is None
    assert result.notes == ("without an importance matrix: llama.cpp can't load it",)
    for kind, wanted in (("iq2_xs", Wanted()), ("q4_0", Wanted(samples=3))):
        with pytest.raises(NativeFailure, match=r"llama\.cpp can't load it"):
            run(Request(gguf, target_of(kind), tmp_path / "b.gguf", threads=1, importance=wanted))
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.oracle
def test_too_little_memory(tiny_folder: Path, tmp_path: Path) -> None:
    """With what would help."""
    request = replace(
        Request(tiny_folder, target_of("q4_0"), tmp_path / "out.gguf", threads=1, importance=SMALL),
        free_memory=lambda: 1_000_000,
    )
    with pytest.raises(NotEnoughMemory, match="give fewer --samples, or --imatrix off"):
        run(request)


@pytest.mark.parametrize(("at", "left"), [(0, []), (1, [".out.gguf.unfinished"])])
def test_interrupted_while_it_is_made(gguf: Path, tmp_path: Path, at: int, left: list[str]) -> None:
    """Nothing is left but what --resume goes on with: a sample that is done."""

    def interrupt(step: Step) -> None:
        if step.stage is Stage.CALIBRATE and step.index >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            Request(gguf, target_of("q4_0"), tmp_path / "out.gguf", threads=1, importance=SMALL),
            interrupt,
        )
    assert [path.name for path in tmp_path.iterdir()] == left


def test_keys_fit_in_what_llama_cpp_takes() -> None:
    """However long the names are, and in characters of several bytes."""
    made = importance.Made(ImportanceMatrix({}, ("ü" * 200,), 3), {}, Path("ä" * 120 + ".gguf"))
    keys = made.keys
    native.Order("a", "b", 2, 1, False, dry_run=False, keys=keys)
    assert [key for key, _ in keys] == [
        f"quantize.imatrix.{name}" for name in ("file", "dataset", "entries_count", "chunks_count")
    ]
    texts: Sequence[str] = [value for _, value in keys if isinstance(value, str)]
    assert all(text and len(text.encode()) <= 127 and set(text) <= set("üä.guf") for text in texts)
