"""`edgechat models pull` against a hub on loopback, which behaves as badly as hubs and networks do."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgechat.cli import app
from edgechat.library import pull as pull_module
from edgechat.library.local import list_models, models_dir
from edgechat.library.pull import UNFINISHED
from edgechat.library.source import load_source
from tests.edgechat.library.hub_server import COMMIT, HubServer, Trouble
from tests.edgechat.library.tiny_models import gguf, split_gguf
from tests.oracles.raw_gguf import STRING, tiny_llama

Captured = pytest.CaptureFixture[str]

REPO = "owner/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
PART_1, PART_2 = "tiny-Q8_0-00001-of-00002.gguf", "tiny-Q8_0-00002-of-00002.gguf"


@pytest.fixture
def model(hub: HubServer) -> bytes:
    """The one model of the hub's one repository."""
    data = gguf()
    hub.repositories[REPO] = {"README.md": b"#", FILE: data, "mmproj-tiny-F16.gguf": b"not a model"}
    return data


def target(name: str = FILE) -> Path:
    return models_dir() / "owner" / "tiny-GGUF" / name


def left_over() -> list[str]:
    """What is kept of downloads that were not finished."""
    folder = models_dir() / UNFINISHED
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def pull(*arguments: str) -> int:
    return app.main(["models", "pull", *arguments])


# --- when all is well


def test_a_model(hub: HubServer, model: bytes, capsys: Captured) -> None:
    assert pull(REPO) == 0
    out, err = capsys.readouterr()
    assert out == f"{target()}\n"
    assert err.splitlines() == [
        f"{REPO}: Q4_K_M (330.4 kB), apache-2.0",
        "tiny-Q4_K_M pulled (330.4 kB, checksums are right): edgechat chat tiny-Q4_K_M",
    ]
    assert target().read_bytes() == model
    source = load_source(target())
    assert source is not None
    assert (source.repository, source.revision, source.endpoint) == (REPO, COMMIT, hub.endpoint)
    assert [(one.name, one.size, one.sha256) for one in source.files] == [
        (FILE, len(model), hashlib.sha256(model).hexdigest())
    ]
    assert (source.verified, source.licence) == (True, "apache-2.0")
    assert left_over() == []
    assert [one.name for one in list_models()] == ["starter", "tiny-Q4_K_M"]


@pytest.mark.usefixtures("model")
def test_again_asks_for_no_file(hub: HubServer, capsys: Captured) -> None:
    assert pull(REPO) == 0
    asked = len(hub.ranges(FILE))
    capsys.readouterr()
    assert pull(REPO, "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"] == [
        {
            "name": "tiny-Q4_K_M", "path": str(target()), "size_bytes": 330400,
            "was_here": True, "verified": True,
        }
    ]  # fmt: skip
    assert len(hub.ranges(FILE)) == asked == 1


@pytest.mark.usefixtures("model")
def test_a_newer_one_takes_its_place(hub: HubServer) -> None:
    assert pull(REPO) == 0
    hub.repositories[REPO][FILE] = newer = gguf(tiny_llama().put("general.name", STRING, "Newer"))
    assert pull(REPO) == 0
    assert target().read_bytes() == newer


def test_a_split_model_comes_wholly(hub: HubServer) -> None:
    first, second = split_gguf()
    hub.repositories[REPO] = {f"Q8_0/{PART_1}": first, f"Q8_0/{PART_2}": second}
    assert pull(f"{REPO}:q8_0") == 0
    assert (target(PART_1).read_bytes(), target(PART_2).read_bytes()) == (first, second)
    (model,) = (one for one in list_models() if one.name != "starter")
    assert (model.name, model.size_bytes) == ("tiny-Q8_0", len(first) + len(second))


@pytest.mark.usefixtures("model")
def test_an_alias_and_its_draft(hub: HubServer, capsys: Captured) -> None:
    hub.repositories["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q4_K_M.gguf": gguf(), "Qwen3-4B-Q8_0.gguf": b"no"}
    hub.repositories["Qwen/Qwen3-0.6B-GGUF"] = {"Qwen3-0.6B-Q8_0.gguf": gguf()}
    assert pull("qwen3-4b", "--draft", "--quiet") == 0
    out, err = capsys.readouterr()
    assert [Path(line).name for line in out.splitlines()] == ["Qwen3-4B-Q4_K_M.gguf", "Qwen3-0.6B-Q8_0.gguf"]
    assert err == ""
    assert pull(REPO, "--draft") == 3
    assert capsys.readouterr().err == (
        "edgechat: no draft is known for owner/tiny-GGUF: pull a small model of the same family yourself\n"
    )


@pytest.mark.parametrize(
    "reference",
    [
        f"{REPO}:Q4_K_M", f"{REPO}:q4-k-m", f"{REPO}:{FILE}", f"hf.co/{REPO}", f"https://huggingface.co/{REPO}",
        f"https://huggingface.co/{REPO}/resolve/main/{FILE}?download=true",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("model")
def test_ways_to_name_it(reference: str, hub: HubServer) -> None:
    hub.repositories[REPO]["tiny-Q8_0.gguf"] = gguf()
    assert pull(reference) == 0
    assert target().is_file()


@pytest.mark.usefixtures("model")
def test_the_token_and_the_mirror(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull(REPO) == 0
    assert set(hub.tokens) == {"Bearer hf_secret"}


@pytest.mark.usefixtures("model")
def test_a_proxy_is_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A hub that only the proxy can find; ours answers whatever it is asked, as a proxy would."""
    import huggingface_hub

    huggingface_hub.close_session()
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert pull(REPO) == 0
    assert target().is_file()
    capsys.readouterr()


def test_what_another_program_has_is_linked(
    hub: HubServer, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(model).hexdigest()
    blob = tmp_path / "hub" / "models--owner--tiny-GGUF" / "blobs" / digest
    blob.parent.mkdir(parents=True)
    blob.write_bytes(model)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert pull(REPO) == 0
    assert (target().is_symlink(), target().resolve()) == (True, blob)
    assert hub.ranges(FILE) == []
    assert pull(REPO) == 0  # it is here


# --- the network and the hub


@pytest.mark.usefixtures("model")
def test_a_connection_that_is_cut(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=3)
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert hub.ranges(FILE) == ["", "100000-", "200000-", "300000-"]
    assert hub.sent == len(model)  # nothing came twice
    assert "the connection was cut; trying again" in capsys.readouterr().err


@pytest.mark.usefixtures("model")
def test_a_connection_that_gives_up_keeps_what_came(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.troubles[FILE] = Trouble(cut_after=0)
    hub.troubles[FILE].times = -1
    assert pull(REPO) == 7
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"edgechat: {FILE}: the connection was cut; what came so far is kept: pull it again later to go on"
    )
    assert not target().exists()
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=1)
    assert pull(REPO) == 0
    assert target().read_bytes() == model


@pytest.mark.usefixtures("model")
def test_a_server_that_ignores_ranges(hub: HubServer, model: bytes) -> None:
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=1)
    hub.troubles[FILE].ignores_range = True
    hub.troubles[FILE].times = 2
    hub.troubles[FILE].cut_after = 200_000
    assert pull(REPO) == 0
    assert target().read_bytes() == model


@pytest.mark.usefixtures("model")
def test_silence(hub: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    hub.troubles[FILE] = Trouble(silent_after=65_536, times=1)
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "doesn't answer; trying again" in capsys.readouterr().err


@pytest.mark.usefixtures("model")
def test_slow_bytes(hub: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A byte now and then keeps a connection alive for ever: another may be faster."""
    from edgechat.library.fetch import Patience

    monkeypatch.setattr(
        pull_module, "Patience", lambda: Patience(first_wait_s=0.01, stall_s=0.3, stall_bytes=1000)
    )
    hub.troubles[FILE] = Trouble(rate=50, times=1)
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "bytes came in 0 s; trying again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "trouble", "code", "message"),
    [
        ("list", Trouble(404, {"X-Error-Code": "RepoNotFound"}), 3, "has no repository owner/tiny-GGUF, or"),
        ("list", Trouble(401), 3, "has no repository owner/tiny-GGUF, or it is private"),
        ("list", Trouble(404), 3, "answers 404 Not Found for owner/tiny-GGUF: check its name"),
        ("list", Trouble(403), 7, "answers 403 Forbidden for owner/tiny-GGUF: set HF_TOKEN to a token that"),
        ("list", Trouble(403, {"X-Error-Code": "GatedRepo"}), 7, "is gated: accept its terms at http"),
        ("list", Trouble(429, {"Retry-After": "120"}), 7, "(429): try again in 120 s; an HF_TOKEN raises"),
        ("list", Trouble(500), 7, "answers 500: try again later, or set HF_ENDPOINT to a mirror"),
        ("list", Trouble(503), 7, "answers 503: try again later"),
        ("list", Trouble(418), 7, "answers 418 I'm a Teapot for owner/tiny-GGUF: see whether it opens"),
        (FILE, Trouble(401, {"X-Error-Code": "GatedRepo"}), 7, "is gated: accept its terms at http"),
        (FILE, Trouble(403, {"X-Error-Code": "GatedRepo"}), 7, "then set HF_TOKEN to a token of that"),
        (FILE, Trouble(404, {"X-Error-Code": "EntryNotFound"}), 3, f"has no file {FILE}: pull again, as it"),
        (FILE, Trouble(429, {"Retry-After": "3600"}), 7,
         "is rate limiting (429); what came so far is kept: pull it again in 3600 s to go on"),
        (FILE, Trouble(502), 7, "answers 502; what came so far is kept: pull it again later to go on"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("model")
def test_refusals(
    hub: HubServer, where: str, trouble: Trouble, *, code: int, message: str, capsys: Captured
) -> None:
    hub.troubles[where] = trouble
    assert pull(REPO) == code
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("edgechat: ")
    assert message in last
    assert not target().exists()


@pytest.mark.parametrize("where", ["list", FILE])
@pytest.mark.usefixtures("model")
def test_a_token_that_is_refused(
    hub: HubServer, where: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    hub.troubles[where] = Trouble(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
    assert pull(REPO) == 7
    assert "HF_TOKEN is not valid; set a new one, or unset it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "trouble"),
    [
        ("list", Trouble(429, {"Retry-After": "0"}, times=1)),
        ("list", Trouble(503, times=2)),
        (FILE, Trouble(429, {"Retry-After": "0"}, times=2)),
        (FILE, Trouble(429, {"RateLimit": '"resolvers";r=0;t=0'}, times=1)),
        (FILE, Trouble(500, times=2)),
        (FILE, Trouble(504, times=1)),
    ],
)
def test_trouble_that_passes(hub: HubServer, model: bytes, where: str, trouble: Trouble) -> None:
    hub.troubles[where] = trouble
    assert pull(REPO) == 0
    assert target().read_bytes() == model


def test_nobody_there(hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert pull(REPO) == 7
    err = capsys.readouterr().err
    assert err.startswith("edgechat: http://127.0.0.1:1 can't be reached (")
    assert err.endswith("check the network, or HTTPS_PROXY and HF_ENDPOINT\n")
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    assert pull(REPO) == 2
    assert "HF_ENDPOINT is 'hub.example': give an address" in capsys.readouterr().err


# --- what comes is not what was promised


def test_a_wrong_checksum(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.claimed[FILE] = "0" * 64
    assert pull(REPO) == 7
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"edgechat: {FILE} came with a wrong checksum ({hashlib.sha256(model).hexdigest()[:12]}, not "
        "000000000000) and was removed: pull it again, and if that fails too, tell whoever runs the hub or "
        "mirror"
    )
    assert not target().exists()
    assert left_over() == []


def test_a_beginning_that_was_damaged(hub: HubServer, model: bytes, capsys: Captured) -> None:
    """As after a power cut: the length is right, the bytes are zeros."""
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=1)
    hub.troubles[FILE].times = 1
    interrupted = Trouble(cut_after=0)
    hub.troubles[FILE] = interrupted
    assert pull(REPO) == 7
    (partial,) = (path for path in (models_dir() / UNFINISHED).rglob(FILE))
    partial.write_bytes(bytes(100_000))
    hub.troubles.clear()
    capsys.readouterr()
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "what was here before was damaged; it begins again" in capsys.readouterr().err


def test_a_model_that_must_not_be_loaded(hub: HubServer, capsys: Captured) -> None:
    hub.repositories[REPO] = {FILE: gguf(tiny_llama().put("general.architecture", STRING, "llama"))[:5000]}
    assert pull(REPO) == 4
    assert "is cut off" in capsys.readouterr().err
    assert not target().exists()
    assert left_over() == []


def test_a_hub_without_checksums(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.without_checksums = True
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "the hub gave no checksums" in capsys.readouterr().err
    source = load_source(target())
    assert source is not None
    assert (source.verified, source.files[0].sha256) == (False, hashlib.sha256(model).hexdigest())
    assert pull(REPO) == 0
    assert len(hub.ranges(FILE)) == 1


@pytest.mark.parametrize("name", ["../../../../evil-Q4_K_M.gguf", "a/../evil-Q4_K_M.gguf", "\x1bevil.gguf"])
def test_a_hub_whose_names_lead_elsewhere(hub: HubServer, name: str, capsys: Captured) -> None:
    hub.repositories[REPO] = {name: gguf()}
    assert pull(REPO) == 3
    assert "owner/tiny-GGUF has no GGUF file" in capsys.readouterr().err
    assert hub.ranges("evil-Q4_K_M.gguf") == []


# --- which file


@pytest.mark.usefixtures("model")
def test_what_is_not_there(hub: HubServer, capsys: Captured) -> None:
    hub.repositories[REPO]["tiny-Q8_0.gguf"] = gguf()
    hub.repositories["owner/checkpoint"] = {"model.safetensors": b"", "config.json": b""}
    hub.repositories["owner/empty"] = {"README.md": b""}
    for reference, code, message in (
        (f"{REPO}:q2_k", 3, f"{REPO}: there is no q2_k: choose one of Q4_K_M (330.4 kB), Q8_0 (330.4 kB)"),
        ("owner/checkpoint", 6, "owner/checkpoint is a checkpoint without GGUF files"),
        ("owner/empty", 3, "owner/empty has no GGUF file"),
        ("qwen3-4", 3, "the catalog has no 'qwen3-4'; did you mean qwen3-4b"),
        ("owner/a b", 2, "'owner/a b' is no repository: give OWNER/NAME"),
    ):
        assert pull(reference) == code
        assert message in capsys.readouterr().err


def test_a_choice_that_is_open(hub: HubServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPO] = {"tiny-Q8_0.gguf": gguf(), "tiny-Q6_K.gguf": gguf()}
    assert pull(REPO) == 2
    assert capsys.readouterr().err == (
        f"edgechat: {REPO} has 2 models: choose, as in {REPO}:q6_k (Q6_K (330.4 kB), Q8_0 (330.4 kB))\n"
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: 2)
    assert pull(REPO) == 0
    assert target("tiny-Q8_0.gguf").is_file()


@pytest.mark.usefixtures("model")
def test_a_full_disk(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(
        pull_module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**8)
    )
    assert pull(REPO) == 5
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"edgechat: {FILE} takes 330.4 kB more, and {target().parent} has 100.0 MB free: free some space, "
        "or choose a smaller quantization"
    )


# --- other processes


def _start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "edgechat", "models", "pull", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(Path(__file__).parents[3])},
    )


def _wait_until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_killed_goes_on(hub: HubServer, model: bytes, kind: signal.Signals) -> None:
    hub.troubles[FILE] = Trouble(silent_after=200_000, times=1)
    with _start(REPO) as process:
        _wait_until(lambda: hub.sent >= 200_000)
        _wait_until(lambda: any(path.stat().st_size >= 150_000 for path in models_dir().rglob(FILE)))
        process.send_signal(kind)
        out, err = process.communicate(timeout=60)
    assert process.returncode == (130 if kind == signal.SIGINT else -kind)
    assert (out, "Traceback" in err) == ("", False)
    assert not target().exists()
    before = hub.sent
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert hub.ranges(FILE)[1] not in ("", "0-")
    assert hub.sent - before < len(model) - 100_000  # most of it was there
    assert left_over() == []


def test_two_pulls_of_one_model(hub: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "120")
    gate = threading.Event()
    hub.troubles[FILE] = Trouble(silent_after=100_000, gate=gate, times=1)
    with _start(REPO) as first:
        _wait_until(lambda: hub.sent >= 100_000)
        with _start(REPO) as second:
            assert second.stderr is not None
            lines = [second.stderr.readline(), second.stderr.readline()]
            assert lines[1] == f"another edgechat is pulling {FILE}: waiting for it\n"
            gate.set()
            first_out, _ = first.communicate(timeout=120)
            second_out, second_err = second.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first_out == second_out == f"{target()}\n"
    assert "is here already" in second_err
    assert target().read_bytes() == model
    assert len(hub.ranges(FILE)) == 1
    assert left_over() == []


def test_files_come_side_by_side(hub: HubServer) -> None:
    first, second = split_gguf()
    hub.repositories[REPO] = {PART_1: first, PART_2: second}
    gate = threading.Event()
    for name in (PART_1, PART_2):
        hub.troubles[name] = Trouble(silent_after=10_000, gate=gate)

    def open_when_both_are_asked_for() -> None:
        _wait_until(lambda: hub.ranges(PART_1) and hub.ranges(PART_2))
        gate.set()

    watcher = threading.Thread(target=open_when_both_are_asked_for, daemon=True)
    watcher.start()
    assert pull(REPO) == 0
    watcher.join(60)
    assert gate.is_set()
