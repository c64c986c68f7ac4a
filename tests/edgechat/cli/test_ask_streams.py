"""`edgechat ask` in a process of its own: pipes, readers that leave, streams that are closed."""

import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.usefixtures("scripted_engine")


def test_head_has_enough(model):
    command = (
        f"'{sys.executable}' -m edgechat ask '{model}' 'slow 0.01;count 100000' -t 0 </dev/null"
        ' | head -c 5; echo " ${PIPESTATUS[*]}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "0 1 2 0 0\n"
    assert done.stderr == ""


def test_the_engine_ends_with_a_reader_that_has_enough(model):
    asked = subprocess.Popen(
        [sys.executable, "-m", "edgechat", "ask", model, "slow 0.01;count 100000", "-t", "0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert asked.stdout.read(1) == b"0"
    engines = psutil.Process(asked.pid).children()
    assert len(engines) == 1
    asked.stdout.close()
    assert (asked.wait(120), asked.stderr.read()) == (0, b"")
    asked.stderr.close()
    assert psutil.wait_procs(engines, 120)[1] == []


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_an_answer_that_cant_be_printed_is_no_success(model, option):
    command = f'exec "$0" -m edgechat ask "$1" "say hi" -t 0 {option} >&-'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, model],
        capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "edgechat: standard output can't be written: bad file descriptor\n"


@pytest.mark.parametrize(
    ("redirected", "words", "code", "says"),
    [
        ("<&-", "-", 2, "the prompt is empty, as in: "),
        ("<&-", "'say hi' -t 0 -q", 0, ""),
        ("0>/dev/null", "-", 2, "standard input can't be read (bad file descriptor): give a file or a pipe"),
    ],
)
def test_a_standard_input_that_brings_nothing(model, redirected, words, code, says):
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m edgechat ask "$1" {words} {redirected}', sys.executable, model],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "" if code else "hi\n")
    assert done.stderr.startswith(f"edgechat: {says}" if says else "")
    assert done.stderr.count("\n") == bool(says)


def test_control_characters_stay_in_a_pipe(model):
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", "ask", model, "say a\x1b[31mb", "-t", "0"],
        capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == b"a\x1b[31mb\n"


HYGIENE = """
import sys
from edgechat.cli.app import main
code = main(sys.argv[1:])
heavy = {"torch", "llama_cpp", "textual", "transformers", "numpy", "gguf", "rich", "jinja2"}
print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def test_the_parent_of_the_engine_imports_nothing_heavy(model):
    done = subprocess.run(
        [sys.executable, "-c", HYGIENE, "ask", model, "say hi", "-t", "0", "-q"],
        capture_output=True, text=True, check=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout == "hi\n"
    assert done.stderr == "0 []\n"
