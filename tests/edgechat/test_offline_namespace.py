"""Everything but pulls works on a machine without any network interface, and nothing even tries.

The commands run in a network namespace of their own that has no interface, not even loopback. Whether a
socket is asked for is read from the system calls.
"""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

DEADLINE_S = 150
ISOLATE = ["unshare", "--map-root-user", "--net"]
STARTER = ["--threads", "1", "--temperature", "0"]

pytestmark = [pytest.mark.timeout(600)]


def _may_isolate() -> bool:
    if shutil.which(ISOLATE[0]) is None:
        return False
    done = subprocess.run([*ISOLATE, "true"], capture_output=True, check=False)
    return done.returncode == 0


isolated = pytest.mark.skipif(not _may_isolate(), reason="no network namespaces may be made here")


@pytest.fixture(autouse=True)
def _nobody_asks_to_stay_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "EDGECHAT_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def _run(*arguments: str, before: tuple[str, ...] = tuple(ISOLATE)) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*before, sys.executable, "-m", "edgechat", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
    )


@isolated
def test_the_namespace_has_no_network() -> None:
    code = (
        "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError as e: print(e.errno)"
    )
    done = subprocess.run([*ISOLATE, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 101  # ENETUNREACH


@isolated
@pytest.mark.parametrize("options", [(), ("--offline",)])
def test_ask(options: tuple[str, ...]) -> None:
    done = _run(
        *options, "ask", "The capital of France is", "--raw", "--max-tokens", "2", *STARTER, "--quiet"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, " Paris.\n", "")


@isolated
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("models", "ls"), "starter\t135M"),
        (("models", "show", "starter"), "parameters\t135M"),
        (("models", "verify", "starter"), "sound"),
        (("models", "search", "qwen3"), "qwen3-4b"),
        (("models", "du"), "package\t1"),
        (("doctor",), "starter model"),
    ],
)
def test_the_other_commands(arguments: tuple[str, ...], expected: str) -> None:
    done = _run(*arguments)
    assert (done.returncode, expected in done.stdout) == (0, True), done


@isolated
def test_a_pull_says_that_there_is_no_network() -> None:
    done = _run("models", "pull", "owner/repo", before=(*ISOLATE, "env", "HF_ENDPOINT=http://127.0.0.1:9"))
    assert done.returncode == 7
    assert re.fullmatch(
        r"edgechat: http://127.0.0.1:9 can't be reached \(.*\): check the network.*\n", done.stderr
    )


@isolated
def test_a_chat_with_the_starter() -> None:
    """Started, asked, answered and ended, on a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x28\x00\x78\x00\x00\x00\x00\x00")  # 40 rows, 120 columns
    process = subprocess.Popen(
        [
            *ISOLATE,
            sys.executable,
            "-m",
            "edgechat",
            "--offline",
            "chat",
            *STARTER,
            "--ctx",
            "512",
            "--max-tokens",
            "12",
        ],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(slave)
    seen = bytearray()

    def wait_for(pattern: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, seen):
            assert time.monotonic() < deadline, bytes(seen[-2000:])
            if select.select([master], [], [], 0.1)[0]:
                seen.extend(os.read(master, 65536))

    try:
        wait_for(rb"starter|SmolLM2")
        time.sleep(1)
        os.write(master, b"Which city is the capital of France?")
        time.sleep(0.5)
        os.write(master, b"\r")
        wait_for(rb"tok/s")  # the answer is there, with its figures
        os.write(master, b"\x11")  # Ctrl-Q
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    seen.extend(os.read(master, 65536))
                except OSError:
                    break
        assert process.wait(DEADLINE_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(master)


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace here to see system calls with")
@pytest.mark.parametrize("options", [(), ("--offline",)])
def test_no_socket_is_asked_for(options: tuple[str, ...], tmp_path: Path) -> None:
    log = tmp_path / "calls"
    trace = ("strace", "-f", "-qq", "-e", "trace=socket,connect,sendto", "-o", str(log))
    if subprocess.run([*trace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("system calls may not be traced here")
    question = ("The capital of France is", "--raw", "--max-tokens", "1", "--quiet")
    done = _run(*options, "ask", *question, *STARTER, before=trace)
    assert (done.returncode, done.stdout) == (0, " Paris\n"), done
    calls = log.read_text()
    assert "AF_INET" not in calls
    assert "connect(" not in calls


@pytest.mark.parametrize("arguments", [("models", "ls"), ("models", "search"), ("doctor",), ("--help",)])
def test_what_can_reach_the_network_is_not_even_imported(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from edgechat.cli import app\n"
        f"app.main({list(arguments)!r})\n"
        "import json\n"
        "print(json.dumps([name for name in sys.modules if name in "
        "('huggingface_hub', 'httpx2', 'requests', 'urllib3', 'hf_xet')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
