"""`edgechat eval` on a scripted engine, which foretells a text's first byte again and again."""

import io
import json
import math
import sys
from pathlib import Path

import pytest

from edgechat.cli.app import main
from edgechat.cli.eval import read_text
from edgechat.cli.progress_lines import ProgressLines
from quantize.evaluate import Perplexity

pytestmark = pytest.mark.usefixtures("scripted_engine")


def text_file(folder: Path, content: str | bytes) -> str:
    path = folder / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_a_text_that_is_foretold_has_perplexity_one(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", model, "--text", text_file(tmp_path, "a" * 70), "--ctx", "16"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("perplexity 1.0000 ± 0.0000  (model, 28 tokens in windows of 16, ")
    assert out.count("\n") == 1
    assert err == ""


def test_without_a_terminal_there_is_a_line_each_tenth(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProgressLines, "EVERY_S", 0.0)
    words = ["eval", model, "--text", text_file(tmp_path, "a" * 16 * 20), "--ctx", "16"]
    assert main(words) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"evaluating: {tenth}0%, perplexity 1.000" for tenth in range(1, 10)]
    assert main([*words, "--quiet"]) == 0
    assert capfd.readouterr().err == ""


def test_lines_come_a_while_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However fast it goes; and however slow, no two of the same tenth."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    lines = ProgressLines("comparing")
    for seconds, share in ((1, 0.3), (9.5, 0.4), (10, 0.55), (19, 0.7), (20, 0.58), (25, 0.6), (99, 1)):
        clock[0] = seconds
        lines(share)
    assert capsys.readouterr().err.splitlines() == ["comparing: 55%", "comparing: 60%"]


def test_json_is_one_object(model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", model, "--text", text_file(tmp_path, "ab" * 35), "--ctx", "16", "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    result = json.loads(out)
    assert result.pop("seconds") >= 0
    # of tokens 9 to 15 of each window, four are "b", each with a loss of 200
    losses = [0.0] * 12 + [200.0] * 16
    mean = math.fsum(losses) / 28
    deviation = math.sqrt(sum((loss - mean) ** 2 for loss in losses) / 27)
    assert result.pop("perplexity") == pytest.approx(math.exp(mean))
    assert result.pop("stderr") == pytest.approx(math.exp(mean) * deviation / math.sqrt(28))
    assert result == {"model": "model", "title": "scripted", "tokens": 28, "text_tokens": 70, "n_ctx": 16}


def test_the_default_is_our_own_text(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", model, "--ctx", "16384"]) == 2
    assert f"it has {len(read_text(None).encode())} tokens" in capfd.readouterr().err


def test_a_pipe(model: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a" * 32)))
    assert main(["eval", model, "--text", "-", "--ctx", "16", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["perplexity"] == pytest.approx(1)


def test_windows_beyond_what_the_model_was_trained_on_are_said(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = text_file(tmp_path, "a" * 16_500)
    assert main(["eval", model, "--text", text, "--ctx", "8200"]) == 0
    assert "more than the model was trained on (8192)" in capfd.readouterr().err
    assert main(["eval", model, "--text", text, "--ctx", "8200", "--quiet"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"fine, then \xff", "is not a UTF-8 text (byte 11)"),
        (b"too short", "the text is too short: it has 9 tokens, and 2 windows of 512 are needed"),
    ],
)
def test_a_text_that_will_not_do(
    content: bytes, words: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", model, "--text", text_file(tmp_path, content)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_text_that_is_not_there(model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", model, "--text", str(tmp_path / "none.txt")]) == 3
    assert "there is no such file" in capfd.readouterr().err
    assert main(["eval", model, "--text", str(tmp_path)]) == 3
    assert "can't be read" in capfd.readouterr().err


def test_a_model_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path / "none.gguf")]) == 3
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("ctx", ["7", "0", "x"])
def test_a_window_that_is_none(ctx: str, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", model, "--ctx", ctx]) == 2
    assert "--ctx" in capfd.readouterr().err


def test_an_engine_that_dies(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "die SIGKILL"
    path.write_bytes(b"GGUF")
    assert main(["eval", str(path)]) == 8
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_both_models_of_a_comparison_are_named_as_everywhere(
    starter_gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name, or a path; what is not there is refused with the nearest names."""
    comparing = pytest.importorskip("quantize.compare")
    asked = []

    def compare(source: Path, result: Path, text: str, **options: object) -> object:
        asked.append((source, result))
        same = Perplexity(2.0, 4.0, 2)
        return comparing.Comparison(same, same, 0.0, 0.0, 1.0, 2, 512)

    monkeypatch.setattr(comparing, "compare_paths", compare)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert main(["eval", "starter", "--against", str(folder), "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["model"], result["source"]) == (str(starter_gguf), str(folder))
    assert main(["eval", "~/source", "--against", "Starter"]) == 0
    assert asked == [(folder, starter_gguf), (starter_gguf, folder)]
    capfd.readouterr()
    for words in (["startre", "--against", str(folder)], [str(folder), "--against", "startre"]):
        assert main(["eval", *words]) == 3
        assert "did you mean starter?" in capfd.readouterr().err
