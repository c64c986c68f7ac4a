"""Bytes that are no UTF-8 on the command line, and letters that a terminal's encoding lacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.cli.output import well_formed
from edgechat.library.local import models_dir
from tests.oracles.raw_gguf import tiny_llama

pytestmark = pytest.mark.usefixtures("scripted_engine")

NAME = b"caf\xe9.gguf"


def edgechat(*arguments: bytes | str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """Run the real thing."""
    return subprocess.run(
        [sys.executable, "-m", "edgechat", *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.fixture
def nameless(tmp_path: Path) -> bytes:
    """A sound file with a name that is no text."""
    path = os.fsencode(tmp_path) + b"/" + NAME
    with open(path, "wb") as file:
        file.write(tiny_llama().data())
    return path


@pytest.mark.parametrize("raw", [b"caf\xe9", b"\xff\xfe", "schön 語".encode(), b""])
def test_arguments_become_what_the_same_bytes_of_a_file_are(raw: bytes) -> None:
    assert well_formed(os.fsdecode(raw)) == raw.decode("utf-8", "replace")


def test_a_prompt(model: str) -> None:
    done = edgechat("ask", model, b"say caf\xe9", "--system", b"\xff", "--stop", b"x\xfe", "-t", "0", "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "caf\N{REPLACEMENT CHARACTER}\n"


def test_a_model_to_be_run_is_refused(nameless: bytes) -> None:
    for command in (["ask"], ["models", "show"], ["models", "plan"], ["eval"], ["quantize"]):
        words: list[bytes | str] = [*command, nameless, *(["hi"] if command == ["ask"] else [])]
        if command == ["quantize"]:
            words += ["--to", "gguf"]
        done = edgechat(*words, "--json")
        assert done.returncode == 2, command
        assert json.loads(done.stdout)["error"]["code"] == 2
        assert done.stderr.count(b"\n") == 1
        assert b"is not UTF-8, which no model's may be: rename it" in done.stderr


def test_json_holds_such_a_name_as_text_and_it_hurts_no_list(nameless: bytes) -> None:
    done = edgechat("models", "verify", nameless, "--json")
    (file,) = json.loads(done.stdout)["files"]
    assert file["path"].endswith("/caf\N{REPLACEMENT CHARACTER}.gguf")
    folder = models_dir()
    folder.mkdir(parents=True)
    os.rename(nameless, os.fsencode(folder) + b"/" + NAME)
    for command in ("ls", "du"):
        done = edgechat("models", command, "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        assert "caf" not in [one.get("name") for one in json.loads(done.stdout).get("models", [])]
        assert edgechat("models", command).returncode == 0


def test_letters_that_the_encoding_lacks(model: str) -> None:
    done = edgechat("ask", model, "say Grüße 語", "-t", "0", "-q", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("latin-1") == "Grüße ?\n"
