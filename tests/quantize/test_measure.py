"""What is measured, against the gguf package's quantizers, llama.cpp's own files, and its logits."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.checkpoint import GGUFCheckpoint
from models.ggml_types import GGMLType
from quantize import measure, sensitivity
from quantize.errors import NativeFailure
from quantize.imatrix import Entry, ImportanceMatrix
from quantize.measure import Measured, Order, Question
from quantize.pipeline import Request, run
from quantize.plan import target_of
from tests.oracles.llama_reference import loaded
from tests.oracles.raw_checkpoint import write_wide

Q, DOWN = "blk.1.attn_q.weight", "blk.0.ffn_down.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in float32, whose ffn_down has rows of 256."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_wide(folder / "model")
    return run(Request(model, target_of("f32"), folder / "tiny.gguf")).path


def measured(source: Path, copy: Path, **changes: object) -> Measured:
    """Errors of two tensors, without groups."""
    values: dict[str, object] = {
        "source": str(source),
        "questions": (
            Question(Q, (GGMLType.Q4_0, GGMLType.Q8_0)),
            Question(DOWN, (GGMLType.Q2_K, GGMLType.Q4_K)),
        ),
        "groups": (),
        "copy": str(copy),
        "imatrix": None,
        "threads": 1,
        "n_texts": 2,
        "n_tokens": 32,
        **changes,
    }
    return measure.measure(Order(**values), lambda name, index, total: None)  # type: ignore[arg-type]


def test_errors_without_weights(source: Path, tmp_path: Path) -> None:
    """Of simple types by the gguf package's quantizer, of K types by a file that llama.cpp wrote."""
    from gguf import GGMLQuantizationType, GGUFReader
    from gguf.quants import dequantize, quantize

    found = measured(source, source).errors
    theirs = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    values = np.asarray(theirs[Q].data, np.float64)
    for kind in (GGMLType.Q4_0, GGMLType.Q8_0):
        label = GGMLQuantizationType(int(kind))
        back = dequantize(quantize(theirs[Q].data, label), label)
        expected = np.square(values - back).sum() / np.square(values).sum()
        assert found[Q][kind] == pytest.approx(expected, rel=1e-4)
    values = np.asarray(theirs[DOWN].data, np.float64)
    written = run(Request(source, target_of("q4_k_s"), tmp_path / "k.gguf", threads=1)).path
    k = {tensor.name: tensor for tensor in GGUFReader(written).tensors}["blk.1.ffn_down.weight"]
    values = np.asarray(theirs["blk.1.ffn_down.weight"].data, np.float64)
    assert k.tensor_type == GGMLQuantizationType.Q4_K
    expected = np.square(values - dequantize(k.data, k.tensor_type)).sum() / np.square(values).sum()
    asked = (Question("blk.1.ffn_down.weight", (GGMLType.Q4_K,)),)
    error = measured(source, source, questions=asked).errors["blk.1.ffn_down.weight"][GGMLType.Q4_K]
    assert error == pytest.approx(expected, rel=1e-4)
    assert found[DOWN][GGMLType.Q2_K] > 4 * found[DOWN][GGMLType.Q4_K]


def test_errors_with_weights(source: Path, tmp_path: Path) -> None:
    """Columns count by their importance, in the rounding and in the error."""
    importance = np.ones((1, 256), np.float32)
    importance[0, ::7] = 1000
    matrix = ImportanceMatrix({DOWN: Entry(importance, np.ones(1, np.float32))})
    matrix.write(tmp_path / "imatrix.gguf")
    plain = measured(source, source).errors
    weighted = measured(source, source, imatrix=str(tmp_path / "imatrix.gguf")).errors
    assert weighted[Q] == plain[Q]
    assert weighted[DOWN][GGMLType.Q2_K] < 0.8 * plain[DOWN][GGMLType.Q2_K]


def test_one_enormous_column_hides_no_other(source: Path, tmp_path: Path) -> None:
    """Its importance is limited in the error; by itself it would make the error of any type nothing."""
    importance = np.ones((1, 256), np.float32)
    plain = measured(source, source).errors[DOWN][GGMLType.Q2_K]
    importance[0, 5] = 1e6
    ImportanceMatrix({DOWN: Entry(importance, np.ones(1, np.float32))}).write(tmp_path / "imatrix.gguf")
    found = measured(source, source, imatrix=str(tmp_path / "imatrix.gguf")).errors[DOWN][GGMLType.Q2_K]
    assert 0.5 * plain < found < 2 * plain
    weights = np.array([[1, 1, 2, 1e6, 0.5], [0, 0, 0, 0, 7]], np.float32)
    limited = [[1, 1, 2, 32, 0.5], [0, 0, 0, 0, 7]]
    assert np.array_equal(measure.limit(weights), np.array(limited, np.float32))
    assert np.array_equal(measure.limit(weights[0]), np.array(limited[0], np.float32))


def test_a_group_is_disturbed_and_comes_back(source: Path, tmp_path: Path) -> None:
    """The divergence is that of llama.cpp's logits of a file with the same tensors disturbed by hand."""
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(source, copy)
    groups = ((Q, DOWN), (Q,))
    found = measured(source, copy, questions=(), groups=groups)
    assert copy.read_bytes() == source.read_bytes()
    passages = _passages(source)
    positions = np.unique(np.linspace(8, 31, 16).astype(int))
    p = _logs(source, passages)[:, positions]
    relative = {}
    for group, divergence in zip(groups, found.divergences, strict=True):
        relative |= _disturbed_by_hand(source, copy, group)
        q = _logs(copy, passages)[:, positions]
        assert divergence == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=0.02)
    assert found.disturbed == pytest.approx(relative, rel=1e-3)


def _disturbed_by_hand(source: Path, path: Path, names: tuple[str, ...]) -> dict[str, float]:
    """Write a model with some tensors in Q4_0, by the gguf package; the squared error of each beside its own
    square."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    label = GGMLQuantizationType.Q4_0
    shutil.copyfile(source, path)
    relative = {}
    with GGUFCheckpoint(source) as checkpoint, path.open("rb+") as file:
        for name in names:
            values = checkpoint.rows(name).astype(np.float64)
            rounded = dequantize(quantize(values.astype(np.float32), label), label)
            relative[name] = np.square(values - rounded).sum() / np.square(values).sum()
            file.seek(checkpoint.tensors[name].offset)
            file.write(rounded.astype("<f4").tobytes())
    return relative


def _passages(path: Path) -> np.ndarray:
    """Two windows of 32 tokens of the mix that comes with edgechat."""
    from quantize.calibration import bundled, samples

    with loaded(path, 32) as reference:

        class Tokenizer:
            template = None

            def encode(self, text: str, *, special: bool) -> list[int]:
                return reference.tokenize(text, add_special=special)

        return samples(bundled(), Tokenizer(), count=2, length=32).tokens


def _logs(path: Path, passages: np.ndarray) -> np.ndarray:
    """Log-probabilities [passages, tokens, n_vocab]."""
    with loaded(path, 32) as reference:
        logits = np.stack([reference.logits(tokens.tolist()) for tokens in passages]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_of_a_large_tensor_a_part_is_disturbed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error beside all that the tensor is; what was there comes back."""
    import quantize.tensors

    copy = tmp_path / "copy.gguf"
    shutil.copyfile(source, copy)
    with GGUFCheckpoint(copy) as checkpoint:
        stored = checkpoint.tensors[DOWN]
        whole, _ = sensitivity._disturbed(checkpoint, stored, None)
        shutil.copyfile(source, copy)
        before = checkpoint.rows(DOWN)
        monkeypatch.setattr(quantize.tensors, "CHUNK_ELEMENTS", 8 * 256)  # 8 of its 64 rows at once
        part, undo = sensitivity._disturbed(checkpoint, stored, None)
        changed = (checkpoint.rows(DOWN) != before).any(1)
        assert changed.reshape(8, 8).all(1).tolist() == [True, False] * 4
        assert part == pytest.approx(whole / 2, rel=0.05)
        sensitivity._write(copy, undo)
    assert copy.read_bytes() == source.read_bytes()


def test_numbers_of_all_widths_come_back() -> None:
    """Rounding leaves short last blocks and zeros alone; BF16 is rounded to the nearest, ties to even."""
    rows = np.zeros((2, 40), np.float32)
    rows[0, 32:] = [7, -7, 3.4, 0, 0, 0, 0, 0.6]
    assert np.array_equal(sensitivity.rounded(rows)[0, 32:], [7, -7, 3, 0, 0, 0, 0, 1])
    assert not sensitivity.rounded(rows)[1].any()
    values = np.array([[1.0, 1.00390625, 1.01171875, -3.14159]], np.float32)
    import torch

    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(sensitivity._encoded(values, GGMLType.BF16), expected)


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"GGUF"), lambda path: path.unlink()])
def test_a_failure_is_said(source: Path, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    """In one line, with the process's last words."""
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(source, copy)
    spoil(copy)
    with pytest.raises(
        NativeFailure, match=r"could not measure the types on .*: .*\(its process ended with 1\)"
    ):
        measured(source, copy, groups=((Q,),))
