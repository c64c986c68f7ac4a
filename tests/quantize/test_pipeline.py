"""A run as a whole: the file appears whole or not at all, and every refusal has its sentence."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.errors import BrokenModelFile, UnsupportedModel
from models.gguf import GGMLType, LazyArray, read_header
from models.verify import verify_gguf
from quantize import delivery, native
from quantize.errors import BadRequest, NotEnoughDisk, OutputExists, QuantizeError, SourceNotFound
from quantize.importance import Wanted
from quantize.output import output_path
from quantize.pipeline import Request, run
from quantize.plan import target_of
from quantize.progress import Stage, Step
from tests.oracles.llama_reference import loaded
from tests.oracles.raw_checkpoint import VOCAB, config, tokenizer, weights, write

F16, Q4_0 = target_of("f16"), target_of("q4_0")


def test_a_result_and_what_is_told(tmp_path: Path) -> None:
    """Steps run through all tensors of both stages, up to all bytes; the figures are right."""
    steps: list[Step] = []
    folder = write(tmp_path / "model")
    result = run(Request(folder, Q4_0, tmp_path / "out.gguf"), steps.append)
    n = len(weights())
    assert result.n_parameters == sum(tensor.size for tensor in weights().values())
    assert result.source_bytes == 4 * result.n_parameters
    assert result.n_bytes == (tmp_path / "out.gguf").stat().st_size
    assert (result.architecture, result.type) == ("llama", "Q4_0")
    seen = [stage for stage in Stage if any(step.stage is stage for step in steps)]
    assert seen == [Stage.CONVERT, Stage.QUANTIZE, Stage.CHECK]
    for stage in (Stage.CONVERT, Stage.QUANTIZE):
        told = [step for step in steps if step.stage is stage]
        assert {step.index for step in told} == set(range(1, n + 1))
        assert {step.total for step in told} == {n}
        done = [step.done_bytes for step in told]
        assert done == sorted(done)
        assert done[-1] <= told[-1].total_bytes
    verify_gguf(result.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.gguf"]


def test_where_the_result_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after the source and the type; a type that a GGUF's name ends in is replaced."""
    folder = write(tmp_path / "My-Model")
    monkeypatch.chdir(tmp_path)
    first = run(Request(folder, F16)).path
    assert first == tmp_path / "My-Model-F16.gguf"
    (tmp_path / "there").mkdir()
    assert run(Request(first, Q4_0, tmp_path / "there")).path == tmp_path / "there" / "My-Model-Q4_0.gguf"
    for name, stem in (("x.Q4_K_M.gguf", "x"), ("qwen2.5-0.5b-q4_k_m.gguf", "qwen2.5-0.5b")):
        path = output_path(tmp_path / name, F16, None, force=False)
        assert path == tmp_path / f"{stem}-F16.gguf"


def test_refusals_before_anything_is_written(tmp_path: Path) -> None:
    """No source, an output that is there, the source itself, no folder."""
    folder = write(tmp_path / "model")
    output = tmp_path / "out.gguf"
    with pytest.raises(SourceNotFound, match="nothing at"):
        run(Request(tmp_path / "x", F16, output))
    output.write_bytes(b"precious")
    with pytest.raises(OutputExists, match=r"exists already: --force replaces it"):
        run(Request(folder, F16, output))
    assert output.read_bytes() == b"precious"
    with pytest.raises(BadRequest, match="there is no folder"):
        run(Request(folder, F16, tmp_path / "a" / "b.gguf"))
    run(Request(folder, F16, output, force=True))
    with pytest.raises(BadRequest, match="is the source itself"):
        run(Request(output, Q4_0, output, force=True))
    os.link(output, tmp_path / "link.gguf")
    with pytest.raises(BadRequest, match="is the source itself"):
        run(Request(output, Q4_0, tmp_path / "link.gguf", force=True))
    verify_gguf(output)


def test_a_result_never_takes_the_place_of_a_file_of_the_source(tmp_path: Path) -> None:
    """Forced or not, there already or not, through a link or not; beside them is a place as any other."""
    folder = write(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "link").symlink_to(folder)
    for place in (folder, tmp_path / "link"):
        for name in ("model.safetensors", "config.json", "tokenizer.model"):
            with pytest.raises(BadRequest, match="one of the source's files: give a name in"):
                run(Request(folder, F16, place / name, force=True))
            with pytest.raises(BadRequest, match="would be one of the source's files"):
                run(Request(tmp_path / "link", F16, place / name, force=True))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    result = run(Request(folder, F16, folder)).path
    assert result == folder / "model-F16.gguf"
    with pytest.raises(BadRequest, match="is the source itself"):
        run(Request(result, Q4_0, tmp_path / "link" / result.name, force=True))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path != result} == before


def test_a_result_is_no_importance_matrix(tmp_path: Path) -> None:
    folder, output = write(tmp_path / "model"), tmp_path / "x.gguf"
    (tmp_path / "link").symlink_to(tmp_path)
    matrix = Wanted(file=tmp_path / "link" / "x.gguf")
    with pytest.raises(BadRequest, match="can't be the result and its importance matrix"):
        run(Request(folder, Q4_0, output, importance=matrix))
    assert not output.exists()


def tensors(**changes: Any) -> dict[str, np.ndarray]:
    """The weights with some replaced, or taken away by None."""
    return {name: value for name, value in {**weights(), **changes}.items() if value is not None}


DOWN = "model.layers.1.mlp.down_proj.weight"
NORM = "model.norm.weight"


def spoiled(value: float, dtype: Any = np.float32) -> np.ndarray:
    """That tensor with one wrong number in it."""
    tensor = weights()[DOWN].astype(dtype)
    tensor[63, 127] = value
    return tensor


def bfloat16_nan() -> np.ndarray:
    bits = (weights()[DOWN].view(np.uint32) >> 16).astype(np.uint16)
    bits[5, 5] = 0x7FC1
    return bits


def replaced(**changes: Any) -> dict[str, Any]:
    """A checkpoint with some tensors replaced."""
    return {"tensors": tensors(**changes)}


EMBEDDING = "model.embed_tokens.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
N = len(VOCAB) - 1
FEWER = {"model": config(vocab_size=N), **replaced(**{EMBEDDING: weights()[EMBEDDING][:-1]})}
MAMBA = {"model": config(architectures=["MambaForCausalLM"])}
UNIGRAM = {"words": tokenizer(model={"type": "Unigram"})}

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": (replaced(**{DOWN: spoiled(np.nan)}), f"{DOWN} holds NaN or infinity"),
    "infinity": (replaced(**{DOWN: spoiled(-np.inf)}), f"{DOWN} holds NaN or infinity"),
    "NaN in float16": (replaced(**{DOWN: spoiled(np.nan, np.float16)}), f"{DOWN} holds NaN or infinity"),
    "NaN in bfloat16": (replaced(**{DOWN: bfloat16_nan()}), f"{DOWN} holds NaN or infinity"),
    "a tensor too few": (replaced(**{DOWN: None}), f"is not whole: .*missing: 1, the first is {DOWN}"),
    "no embedding": ({"tensors": {NORM: weights()[NORM]}}, f"has no tensor {EMBEDDING}"),
    "a wrong shape": (
        replaced(**{DOWN: weights()[DOWN].T.copy()}),
        r"has the shape \[128, 64\], config.json makes it \[64, 128\]",
    ),
    "another vocabulary": (FEWER, f"has the id {N}, but the embedding has {N} rows"),
    "no head": ({"model": config(tie_word_embeddings=False)}, "the first is lm_head.weight"),
    "no hidden size": ({"model": config(hidden_size=None)}, "hidden_size is missing"),
}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "a tensor too many": (
        replaced(**{BIAS: np.zeros(64, np.float32)}),
        f"has 1 tensors that its architecture has not, such as {BIAS}",
    ),
    "a wrong type": (replaced(**{DOWN: np.zeros((64, 128), np.int64)}), f"{DOWN} is of type I64"),
    "whole numbers": (replaced(**{DOWN: np.zeros((64, 128), np.int64)}), f"{DOWN} is of type I64"),
    "another architecture": (MAMBA, "MambaForCausalLM is not supported; supported are Llama"),
    "another tokenizer": (UNIGRAM, "only BPE is supported"),
}
WRONG = {
    **{case: (*parts, BrokenModelFile) for case, parts in BROKEN.items()},
    **{case: (*parts, UnsupportedModel) for case, parts in UNSUPPORTED.items()},
}


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_has_its_error_and_leaves_nothing(tmp_path: Path, case: str, kind: str) -> None:
    """One line that names what is wrong, and no file."""
    parts, message, error = WRONG[case]
    folder = write(tmp_path / "model", **parts)
    with pytest.raises(error, match=message) as caught:
        run(Request(folder, target_of(kind), tmp_path / "out.gguf"))
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_numbers_too_large_for_float16(tmp_path: Path) -> None:
    """Are refused with what would hold them, not turned into infinity."""
    folder = write(tmp_path / "model", tensors=tensors(**{DOWN: spoiled(70000.0)}))
    with pytest.raises(BadRequest, match=f"{DOWN} holds 7e\\+04, over float16's 65504: take bf16 or f32"):
        run(Request(folder, F16, tmp_path / "out.gguf"))
    run(Request(folder, target_of("bf16"), tmp_path / "out.gguf"))


def test_a_head_beside_a_tied_embedding(tmp_path: Path) -> None:
    """The same one is written once; another one makes the model untied, as transformers has it."""
    embedding = weights()["model.embed_tokens.weight"]
    for head, n in ((embedding, 0), (embedding + 1, 1)):
        folder = write(tmp_path / "model", tensors=tensors(**{"lm_head.weight": head}))
        path = run(Request(folder, F16, tmp_path / "out.gguf", force=True)).path
        assert [tensor.name for tensor in read_header(path).tensors].count("output.weight") == n


def test_the_text_part_of_a_model_that_also_sees(tmp_path: Path) -> None:
    """Its tensors carry another prefix; the part that sees is left out."""
    renamed = {name.replace("model.", "model.language_model.", 1): value for name, value in weights().items()}
    renamed["model.vision_tower.x.weight"] = np.zeros((2, 2), np.float32)
    seeing = run(Request(write(tmp_path / "model", tensors=renamed), F16, tmp_path / "a.gguf")).path
    plain = run(Request(write(tmp_path / "model"), F16, tmp_path / "b.gguf")).path
    receipts = [metadata(path).pop("edgechat.receipt") for path in (seeing, plain)]
    assert all(receipts)
    first, second = ({**metadata(path), "edgechat.receipt": ""} for path in (seeing, plain))
    assert first == second
    first, second = (path.read_bytes()[read_header(path).data_offset :] for path in (seeing, plain))
    assert first == second


def test_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before the first tensor is read; and where others fill the disk meanwhile, said too."""
    folder = write(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
        for kind, message in (
            ("f16", r"for the result\)"),
            ("q4_0", r"for the result and \d+ kB on the way\)"),
        ):
            with pytest.raises(NotEnoughDisk, match=message):
                run(Request(folder, target_of(kind), tmp_path / "out.gguf"), pytest.fail)
    for number, message in (
        (errno.ENOSPC, f"{tmp_path} is full: make room, or give another place with -o"),
        (errno.EFBIG, f"{tmp_path} takes no file as large as this one"),
    ):
        with monkeypatch.context() as patch:

            def full(*_: object, number: int = number) -> None:
                raise OSError(number, os.strerror(number))

            patch.setattr(delivery, "write_tensor", full)
            with pytest.raises(NotEnoughDisk, match=message):
                run(Request(folder, F16, tmp_path / "out.gguf"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def metadata(path: Path) -> dict[str, Any]:
    """All of it, arrays read."""
    values = read_header(path).metadata
    return {key: value.read() if isinstance(value, LazyArray) else value for key, value in values.items()}


def test_a_gguf_file_in_another_type(starter_gguf: Path, tmp_path: Path) -> None:
    """Dequantized as the gguf package does it, tensor by tensor; metadata is kept."""
    from gguf import GGMLQuantizationType, GGUFReader
    from gguf.quants import dequantize, quantize

    theirs = {tensor.name: tensor for tensor in GGUFReader(starter_gguf).tensors}
    for kind, label in (("f16", GGMLQuantizationType.F16), ("q8_0", GGMLQuantizationType.Q8_0)):
        result = run(Request(starter_gguf, target_of(kind), tmp_path))
        assert bool(result.notes) == (kind == "q8_0")
        reader = GGUFReader(result.path)
        assert [tensor.name for tensor in reader.tensors] == list(theirs)
        for tensor in reader.tensors[:30]:
            source = np.asarray(
                dequantize(theirs[tensor.name].data, theirs[tensor.name].tensor_type), np.float32
            )
            expected = source if source.ndim == 1 else quantize(source, label)
            assert np.array_equal(np.array(tensor.data).view(np.uint8), expected.view(np.uint8)), tensor.name
        before, after = metadata(starter_gguf), metadata(result.path)
        assert {key for key in before if before[key] != after[key]} == {"general.file_type"}
        assert before.keys() | {"edgechat.receipt"} == after.keys()
        result.path.unlink()


def test_a_second_quantization_is_said(starter_gguf: Path, tmp_path: Path) -> None:
    """K-quants of a quantized file come with a note, and the file runs."""
    result = run(Request(starter_gguf, target_of("q4_k_m"), tmp_path / "out.gguf", threads=2))
    note = result.notes[0]
    assert "a second quantization costs quality" in note
    kinds = {tensor.type for tensor in read_header(result.path).tensors}
    assert {GGMLType.F32, GGMLType.Q5_0} <= kinds  # 576 columns don't fill blocks of 256
    with loaded(result.path, 64) as reference:
        ids = reference.tokenize("The capital of France is")
        assert reference.text([int(reference.logits(ids)[-1].argmax())]) == " Paris"


def test_a_broken_gguf_never_reaches_llama_cpp(
    starter_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header is checked first."""
    monkeypatch.setattr(native, "run", pytest.fail)
    broken = tmp_path / "broken.gguf"
    with starter_gguf.open("rb") as file:
        broken.write_bytes(file.read(5_000_000))
    for kind in ("f16", "q4_k_m"):
        with pytest.raises(BrokenModelFile, match="is cut off"):
            run(Request(broken, target_of(kind), tmp_path / "out.gguf"))


def test_errors_of_ours_are_of_two_families(tmp_path: Path) -> None:
    """A file that is neither folder nor GGUF, and a folder without anything."""
    (tmp_path / "x.txt").write_text("x" * 100)
    with pytest.raises(BrokenModelFile, match="not a model: give a GGUF file"):
        run(Request(tmp_path / "x.txt", F16, tmp_path / "out.gguf"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty has no weights .*: download the rest"):
        run(Request(tmp_path / "empty", F16, tmp_path / "out.gguf"))
    assert issubclass(BadRequest, QuantizeError)


MEASURE = """
import resource, sys
from pathlib import Path
from quantize.pipeline import Request, run
from quantize.plan import target_of
run(Request(Path(sys.argv[1]), target_of(sys.argv[2]), Path(sys.argv[3])))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak if sys.platform == "darwin" else peak * 1024)
"""


@pytest.mark.skipif(os.name == "nt", reason="no getrusage")
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_memory_does_not_grow_with_the_model(tmp_path: Path, kind: str) -> None:
    """An embedding of 192 MiB costs a few chunks of it."""
    n_rows = 3 * 2**18
    big = {name: value for name, value in weights().items() if name != "model.embed_tokens.weight"}
    folder = write(tmp_path / "big", model=config(vocab_size=n_rows), tensors=big)
    _append_zeros(folder / "model.safetensors", "model.embed_tokens.weight", (n_rows, 64))
    peaks = []
    for source in (write(tmp_path / "small"), folder):
        command = [sys.executable, "-c", MEASURE, str(source), kind, str(tmp_path / f"{source.name}.gguf")]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
        peaks.append(int(done.stdout))
    # The vocabulary of 786,432 tokens takes its own share, the weights next to none.
    assert peaks[1] - peaks[0] < 2**28
    assert (tmp_path / "big.gguf").stat().st_size > n_rows * 64


def _append_zeros(path: Path, name: str, shape: tuple[int, int]) -> None:
    """Put one more tensor into a safetensors file, as a hole of the file system."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    size = shape[0] * shape[1] * 4
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
    new = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(new).to_bytes(8, "little") + new + data)
        file.truncate(8 + len(new) + len(data) + size)
