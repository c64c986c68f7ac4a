"""How far a GGUF file is from its source, in its receipt: against the gguf package and `compare_paths`."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, dequantize

from models.errors import UnsupportedModel
from models.gguf import read_header
from models.receipt import receipt_in
from models.verify import verify_gguf
from quantize import pipeline
from quantize.compare import compare_paths, held_out
from quantize.gguf_evaluation import Evaluation
from quantize.pipeline import Request, run
from quantize.plan import target_of
from quantize.receipt import figures

N_CTX = 256
"""Of the tiny model: a window is no longer."""
LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def dense(path: Path) -> dict[str, np.ndarray]:
    """All matrices of the layers, in float64."""
    return {
        tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in GGUFReader(path).tensors
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1
    }


@pytest.fixture(scope="module")
def quantized(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluation]:
    """By llama.cpp, looked at because it rounds."""
    output = tmp_path_factory.mktemp("evaluated") / "tiny.gguf"
    result = run(Request(tiny_folder, target_of("q4_0"), output, evaluated=None))
    assert result.evaluation is not None
    return output, result.evaluation


def test_the_errors_are_those_of_the_gguf_packages_numbers(
    quantized: tuple[Path, Evaluation], tiny_folder: Path, tmp_path: Path
) -> None:
    path, found = quantized
    plain = run(Request(tiny_folder, target_of("f32"), tmp_path / "plain.gguf")).path
    before, after = dense(plain), dense(path)
    assert len(before) == 4 * len(LAYER)
    for index, layer in enumerate(found.layers):
        errors = sorted(one["error"] for one in layer["matrices"])
        expected = sorted(
            np.square(after[name] - before[name]).sum() / np.square(before[name]).sum()
            for name in (f"blk.{index}.{part}.weight" for part in LAYER)
        )
        assert errors == pytest.approx(expected, rel=1e-5)
        assert found.layer_errors[index] == pytest.approx(np.mean(expected), rel=0.01)
        assert 0.001 < np.mean(expected) < 0.02


def test_the_receipt_tells_what_a_comparison_tells(
    quantized: tuple[Path, Evaluation], tiny_folder: Path
) -> None:
    """From the file's own header, which is sound; of a GGUF source, too."""
    path, found = quantized
    record = receipt_in(verify_gguf(path))
    assert record is not None
    expected = figures(compare_paths(tiny_folder, path, held_out(), length=N_CTX, told=lambda share: None))
    assert {name: record["evaluation"][name] for name in expected} == pytest.approx(expected)
    assert record["evaluation"]["mean_kl"] > 0
    assert record["layer_errors"] == found.layer_errors
    assert record["recipe"]["type"] == "Q4_0"


def test_of_a_gguf_source(tiny_folder: Path, tmp_path: Path) -> None:
    plain = run(Request(tiny_folder, target_of("f32"), tmp_path / "plain.gguf")).path
    result = run(Request(plain, target_of("q8_0"), tmp_path / "small.gguf", evaluated=True))
    assert result.evaluation is not None
    expected = figures(compare_paths(plain, result.path, held_out(), length=N_CTX, told=lambda share: None))
    for name, value in expected.items():
        assert result.evaluation.figures[name] == pytest.approx(value)


@pytest.mark.parametrize("kind", ["q8_0", "bf16"])
def test_what_llama_does_not_round_is_not_looked_at_unasked(
    tiny_folder: Path, tmp_path: Path, kind: str
) -> None:
    result = run(Request(tiny_folder, target_of(kind), tmp_path / "out.gguf", evaluated=None))
    assert result.evaluation is None
    record = receipt_in(read_header(result.path))
    assert record is not None
    assert "evaluation" not in record


def test_where_it_can_not_be_done(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, it is refused before the work; else the file is made, and a note says why."""

    def impossible(source: Path) -> None:
        raise UnsupportedModel("comparing needs torch")

    monkeypatch.setattr(pipeline, "check_possible", impossible)
    output = tmp_path / "out.gguf"
    with pytest.raises(UnsupportedModel):
        run(Request(tiny_folder, target_of("q4_0"), output, evaluated=True))
    assert not output.exists()
    result = run(Request(tiny_folder, target_of("q4_0"), output, evaluated=None))
    assert result.evaluation is None
    assert "not compared with the source: comparing needs torch" in result.notes


def test_a_file_whose_comparison_was_stopped_is_whole(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "evaluate", stopped)
    output = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt) as stop:
        run(Request(tiny_folder, target_of("q4_0"), output, evaluated=None))
    assert stop.value.__notes__ == [f"{output} is there, and whole: only the comparison was stopped"]
    record = receipt_in(verify_gguf(output))
    assert record is not None
    assert record["recipe"]["type"] == "Q4_0"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_on_the_command_line(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the picture, the same picture again from the receipt, and JSON."""
    from edgechat.cli.app import main

    output, picture = tmp_path / "out.gguf", tmp_path / "a.svg"
    command = ["quantize", str(tiny_folder), "--type", "q4_0", "--imatrix", "off", "-o", str(output)]
    assert main([*command, "--plot", str(picture), "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["evaluation"]["perplexity"] > 1
    assert len(record["layers"]) == 4
    assert "KL divergence" in err
    assert "error of the weights" in err
    assert "ffn" not in picture.read_text()
    assert "down_proj" in picture.read_text()
    assert main(["eval", str(output), "--plot", str(tmp_path / "b.svg")]) == 0
    assert "all matrices" in (tmp_path / "b.svg").read_text()
    capsys.readouterr()
    assert main([*command, "--force", "--no-eval", "--plot", str(picture)]) == 2
    assert "--plot doesn't go with --no-eval" in capsys.readouterr().err
    assert main([*command, "--force", "--no-eval"]) == 0
    assert "KL divergence" not in capsys.readouterr().err
