"""`edgechat bench` on a scripted engine, whose times mean nothing: what is printed, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgechat.bench import run as bench_run
from edgechat.bench.results import Part
from edgechat.bench.texts import KINDS
from edgechat.cli import bench_tables
from edgechat.cli.app import main
from edgechat.cli.bench import parse_parts
from edgechat.errors import UsageError

pytestmark = pytest.mark.usefixtures("scripted_engine")


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def test_json_is_one_object_with_every_part(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", model, "--quick", "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["model"] == "scripted"
    assert found["quick"] is True
    assert found["interrupted"] is False
    assert found["warnings"] == []
    for part in ("decode", "prefill"):
        assert found[part]["peer"] == "a bare llama_decode loop"
        assert found[part]["runs"] == 5
        assert min(found[part][key] for key in ("tokens_per_s", "peer_tokens_per_s", "over_peer")) > 0
    assert found["decode"]["tokens"] == 33
    assert found["decode"]["gb_per_s"] == pytest.approx(found["decode"]["tokens_per_s"] * 1 / 1e9)
    assert found["verify"]["widths"] == list(range(1, 17))
    assert found["verify"]["over_plain"][0] == 1
    assert [one["kind"] for one in found["speculation"]["kinds"]] == [
        "edit",
        "quote",
        "json",
        "prose",
        "poem",
    ]
    for kind in found["speculation"]["kinds"]:  # the scripted engine drafts nothing
        assert kind["drafted"] == 0
        assert kind["same_text"] is True
    assert found["window"]["tokens"] == 512
    assert found["window"]["evictions"] >= 2
    assert found["prefix"]["prompt_tokens"] > 250
    assert found["memory"]["kv"][0] == {
        "kv_type": "f16", "bytes_per_token": 1, "total_bytes": 8192, "of_f16": 1.0,
    }  # fmt: skip
    assert found["memory"]["measured_bytes"] > 0


def test_only_what_was_asked_for_is_measured(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", model, "--quick", "--only", "memory,verify", "--json", "--threads", "1"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {part for part in Part if found[part] is not None} == {"verify", "memory"}
    assert found["adaptive_threads"] is False


def test_a_table_for_a_pipe(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", model, "--quick", "--only", "decode,verify,speculation,memory"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    head, *rows = out.splitlines()
    assert head.startswith("scripted, none, 1 B, CPU, ")
    names = [row.split("\t")[0].strip() for row in rows]
    assert names[:2] == ["decode", "context, f16"]
    assert names[5:21] == [f"verify {k}" for k in range(1, 17)]
    assert names[21:] == list(KINDS)
    assert rows[0].endswith("a bare llama_decode loop")


def test_a_table_for_a_person(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[object, ...]] = []
    monkeypatch.setattr(bench_tables, "table", lambda heads, rows: shown.append((heads, *rows)))
    assert main(["bench", model, "--quick", "--only", "prefix,window"]) == 0
    ((heads, *rows),) = shown
    assert heads == ("", "measured", "peer's", "ratio", "the peer")
    names = [row[0] for row in rows]  # type: ignore[index]
    assert names[0] == "window of 256, 512 tokens"
    assert names[-1] == "  after a restart"


def test_a_busy_machine_is_said(
    model: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 0.0, 0.0))
    assert bench_run.busy_warning() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (2.1, 0.0, 0.0))
    assert main(["bench", model, "--quick", "--only", "memory", "--json"]) == 0
    out, err = capfd.readouterr()
    assert err.startswith("warning: the machine is busy (load 2.1 on 4 cores)")
    assert err.count("\n") == 1
    assert json.loads(out)["warnings"][0].startswith("the machine is busy")
    assert main(["bench", model, "--quick", "--only", "memory", "--json", "--quiet"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "speed"], "--only speed: there is no such measurement"),
        (["--only", ","], "--only names nothing"),
        (["--threads", "-1"], "--threads"),
        (["--kv-type", "f8"], "--kv-type"),
    ],
)
def test_wrong_options(
    arguments: list[str], words: str, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", model, *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_parts_are_measured_in_their_own_order() -> None:
    assert parse_parts("memory, decode,decode") == (Part.DECODE, Part.MEMORY)
    with pytest.raises(UsageError, match="decode,prefill,verify"):
        parse_parts("")


def test_a_model_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path / "none.gguf")]) == 3
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("name", "code"), [("die SIGKILL", 8), ("refuse", 5)])
def test_an_engine_that_dies_or_refuses(
    name: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(b"GGUF")
    assert main(["bench", str(path), "--quick"]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_what_was_measured_is_printed_before_an_error(
    model: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(plan: object) -> None:
        raise UsageError("no window")

    monkeypatch.setattr(bench_run.window, "measure", fail)
    assert main(["bench", model, "--quick", "--only", "verify,window,memory", "--json"]) == 2
    out, err = capfd.readouterr()
    assert err == "edgechat: no window\n"
    found = json.loads(out)
    assert found["verify"] is not None
    assert found["memory"] is None


def test_ctrl_c_prints_what_was_measured(tmp_path: Path, edgechat_home: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    code = (
        "import sys, asyncio\n"
        "from edgechat.bench import run\n"
        "async def hang(plan):\n"
        "    print('hanging', file=sys.stderr, flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "run.window.measure = hang\n"
        "from edgechat.cli.app import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["bench", str(path), "--quick", "--only", "verify,window", "--json", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "hanging\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == ""
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["verify"] is not None
    assert found["window"] is None
