import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from edgechat import __version__, errors, paths
from edgechat.cli import app as cli
from edgechat.cli import failures
from edgechat.cli.app import COMMANDS, Command, main
from edgechat.cli.output import brief, clipped


@pytest.fixture
def command(monkeypatch):
    """Makes `edgechat try` run a function."""

    def install(function):
        module = type(sys)("edgechat_try")
        module.app = typer.Typer(rich_markup_mode=None)
        module.app.command()(function)
        monkeypatch.setitem(sys.modules, "edgechat_try", module)
        monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, Command("try", "edgechat_try", "Try.")))

    return install


def raising(error):
    def function() -> None:
        raise error

    return function


def test_help_lists_every_command_with_its_line(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for one in COMMANDS:
        assert any(line.split() == [one.name, *one.help.split()] for line in out.splitlines()), one.name


def test_without_a_terminal_help_is_all_there_is(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: edgechat")


def test_on_a_terminal_it_chats(monkeypatch):
    called = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(cli, "load_command", lambda name: called.append(name) or _stub())
    assert main([]) == 0
    assert called == ["chat"]


def _stub():
    stub = typer.Typer()
    stub.command()(lambda: None)
    return typer.main.get_command(stub)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"edgechat {__version__}\n"


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.name)
def test_every_command_exists_and_its_help_begins_with_a_sentence(one, capsys):
    importlib.import_module(one.module)
    assert main([one.name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: edgechat {one.name} ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["akk"], "edgechat: No such command 'akk'. Did you mean 'ask'?; see: edgechat --help\n"),
        (["--bad"], "edgechat: No such option: --bad; see: edgechat --help\n"),
        (["ask", "--zzz", "x"], "edgechat: No such option: --zzz; see: edgechat ask --help\n"),
    ],
)
def test_wrong_usage_is_one_line_with_what_to_type(arguments, line, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == line
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["-c"], "edgechat chat -c"),
        (["--continue"], "edgechat chat --continue"),
        (["--resume", "5"], "edgechat chat --resume 5"),
        (["--json", "ask", "hi"], "edgechat ask --json hi"),
        (["--type", "q4_0", "quantize", "x"], "edgechat quantize --type q4_0 x"),
        (["starter"], "edgechat chat starter"),
        (["models/some.gguf", "--ctx", "512"], "edgechat chat models/some.gguf --ctx 512"),
        (["Why is the sky blue?"], "edgechat ask 'Why is the sky blue?'"),
        (["why", "is", "it", "blue?"], "edgechat ask 'why is it blue?'"),
        (["pull", "qwen3-4b"], "edgechat models pull qwen3-4b"),
        (["list"], "edgechat models ls"),
        (["help"], "edgechat --help"),
        (["x " * 500], "edgechat ask ..."),
    ],
)
def test_without_the_command_it_is_said_what_to_type(arguments, typed, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.endswith(f": {typed}\n") or captured.err.endswith(f": type {typed}\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["ask", "--temperature", "abc", "x"],
            "--temperature: give a number from 0 to 100; see: edgechat ask",
        ),
        (["ask", "--top-p", "2", "x"], "--top-p: give a number from 0 to 1; see: edgechat ask"),
        (["ask", "--seed", "-1", "x"], "--seed: give a whole number of at least 0; see: edgechat ask"),
        (["ask", "--ctx", "1.5", "x"], "--ctx: give a whole number from 0 to 16777216; see: edgechat ask"),
        (["ask", "--kv-type", "q5", "x"], "--kv-type 'q5': give f16, q8_0 or q4_0; see: edgechat ask"),
        (["ask", "--stop"], "--stop lacks its value; see: edgechat ask"),
        (["ask", "--jsn", "x"], "No such option: --jsn, did you mean --json; see: edgechat ask"),
        (
            ["models", "pull", "--offline", "x"],
            "--offline stands before the command, as in: edgechat --offline models ls; "
            "see: edgechat models pull",
        ),
        (["models", "plan"], "MODEL is missing; see: edgechat models plan"),
        (["models", "plan", "--ctx"], "--ctx lacks its value; see: edgechat models plan"),
        (["doctor", "x", "y"], "'x y' is too much, no more words belong here; see: edgechat doctor"),
    ],
)
def test_a_wrong_option_is_told_in_words(arguments, line, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"edgechat: {line} --help\n"


@pytest.mark.parametrize("command", ["ask", "chat", "quantize", "eval", "bench", "models plan"])
def test_help_names_no_types_of_python(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert not [word for word in ("<int", "<str", "<float", "<list", "range>") if word in page]


def test_usage_is_written_as_in_manual_pages(capsys):
    for command, usage in {
        "quantize": "SOURCE",
        "chat": "[MODEL]",
        "models plan": "MODEL",
        "models rm": "[MODEL]...",
        "models verify": "FILE...",
        "models search": "[WORDS]...",
    }.items():
        assert main([*command.split(), "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: edgechat {command} [OPTIONS] {usage}\n")


def test_a_command_that_lacks_its_verb_shows_its_page(capsys):
    assert main(["models"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: edgechat models ")
    assert "\n  verify  Check that files are whole and safe to load.\n" in captured.err
    assert "..." not in captured.err.partition("\n")[2]  # nothing is cut


@pytest.mark.parametrize("kind", errors.BY_CODE.values(), ids=lambda kind: kind.__name__)
def test_each_error_has_its_code_and_one_line(kind, command, capsys):
    command(raising(kind("first line\nsecond \x1b[31mline")))
    assert main(["try"]) == kind.code
    assert capsys.readouterr().err == "edgechat: first line second [31mline\n"


def test_a_bug_is_one_line_and_its_trace_a_private_file(command, capsys):
    command(raising(ZeroDivisionError("by zero")))
    assert main(["try"]) == 1
    (trace,) = paths.log_dir().glob("bug-*.txt")
    assert capsys.readouterr().err == (
        f"edgechat: a bug of edgechat: ZeroDivisionError: by zero. Its trace is in {trace}\n"
    )
    text = trace.read_text()
    assert text.startswith(f"edgechat {__version__}, Python 3")
    assert "Traceback" in text
    assert trace.stat().st_mode & 0o777 == 0o600


def test_a_bug_where_nothing_can_be_written(command, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    command(raising(ZeroDivisionError("by zero")))
    assert main(["try"]) == 1
    assert "EDGECHAT_DEBUG=1 shows it" in capsys.readouterr().err


def test_debugging_shows_the_trace(command, capsys, monkeypatch):
    monkeypatch.setenv("EDGECHAT_DEBUG", "1")
    command(raising(errors.NotFoundError("no such model")))
    assert main(["try"]) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("edgechat: no such model\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_quiet(error, command, capsys):
    command(raising(error))
    assert main(["try"]) == 130
    assert capsys.readouterr().err == ""


def test_a_command_chooses_its_code(command):
    command(raising(typer.Exit(8)))
    assert main(["try"]) == 8


def test_a_reader_that_went_away_is_no_failure(command, monkeypatch, capsys):
    closed = []
    monkeypatch.setattr(failures, "_close_output", lambda: closed.append(True))
    command(raising(BrokenPipeError()))
    assert main(["try"]) == 0
    assert closed == [True]
    assert capsys.readouterr().err == ""


HYGIENE = """
import sys
from edgechat.cli.app import main
code = main(sys.argv[1:])
heavy = {"torch", "llama_cpp", "textual", "transformers", "numpy", "gguf", "rich", "asyncio", "jinja2"}
commands = sorted(name for name in sys.modules if name.startswith("edgechat.cli."))
print(sorted(heavy & set(sys.modules)), commands, file=sys.stderr)
"""


def test_help_imports_nothing_heavy_and_no_command():
    done = subprocess.run(
        [sys.executable, "-c", HYGIENE, "--help"], capture_output=True, text=True, check=True, timeout=120
    )
    heavy, commands = done.stderr.split("] ")
    assert heavy == "["
    assert (
        commands.strip()
        == "['edgechat.cli.app', 'edgechat.cli.failures', 'edgechat.cli.help_types', 'edgechat.cli.output']"
    )


def test_the_module_can_be_run():
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == f"edgechat {__version__}\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("x" * 400, "x" * 400),
        ("x" * 200 + "y" * 5000 + "z" * 100 + ": no", "x" * 200 + "…" + "z" * 99 + ": no"),
        ("no " * 1000, "no " * 250 + "…" + ("no " * 1000).strip()[-375:]),
    ],
)
def test_a_message_never_repeats_kilobytes(text, shown):
    assert brief(text) == shown


@pytest.mark.parametrize("closed", [{0}, {1}, {2}, {0, 1, 2}])
def test_a_closed_stream_is_no_other_file_and_what_is_printed_there_is_not_lost_in_silence(closed):
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'exec "$0" -m edgechat --version {" ".join(f"{n}>&-" for n in closed)}',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == (2 if 1 in closed else 0)
    assert done.stdout == ("" if 1 in closed else f"edgechat {__version__}\n")
    message = "edgechat: standard output can't be written: bad file descriptor\n"
    assert done.stderr == (message if closed == {1} else "")


@pytest.mark.parametrize("arguments", ["--help", "--version", "ask --help", "models ls"])
def test_a_reader_that_went_away_before_anything_was_printed(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", *arguments.split()],
        stdout=writing, stderr=subprocess.PIPE, check=False, timeout=120,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("command", "output", "code", "message"),
    [
        ("--version", ">/dev/full", 5, "standard output can't be written: no space left on device"),
        ("models ls", ">/dev/full", 5, "standard output can't be written: no space left on device"),
        ("models ls --json", ">/dev/full", 5, "standard output can't be written: no space left on device"),
        ("models ls", "1</dev/null", 2, "standard output can't be written: bad file descriptor"),
        ("models ls", ">&-", 2, "standard output can't be written: bad file descriptor"),
        ("models ls --json", ">&-", 2, "standard output can't be written: bad file descriptor"),
        ("models show nope --json", ">/dev/full", 3, "no model named 'nope': "),
    ],
)
def test_output_that_cant_be_written_is_named(command, output, code, message, unbuffered):
    """In one line, whether it fails at once or at the end, and never twice."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m edgechat {command} {output}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert done.returncode == code
    assert done.stderr.startswith(f"edgechat: {message}")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_it_starts_is_quiet():
    """At the first import of its own, where no command can say anything yet."""
    script = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'edgechat.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from edgechat.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_a_file_says_of_itself_is_clipped_in_a_table():
    assert clipped("N" * 2000) == "N" * 99 + "…"
    assert clipped("a\nb \x1b[31m") == "a b [31m"
