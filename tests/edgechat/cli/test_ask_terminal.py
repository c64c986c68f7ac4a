"""`edgechat ask` as a person meets it: on a terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest

pytestmark = pytest.mark.usefixtures("scripted_engine")

DEADLINE_S = 120


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments, stdout=None):
        self.master, slave = pty.openpty()
        self.seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgechat", *arguments],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
            # its own terminal, so that Ctrl-C reaches it
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(slave)

    def read(self):
        """More of the screen; False at its end."""
        ready, _, _ = select.select([self.master], [], [], 0.1)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux's way to say that nobody has the other side open
            return False
        self.seen += data
        return bool(data)

    def wait_for(self, pattern):
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, self.seen
            assert self.read(), self.seen

    def type(self, keys):
        os.write(self.master, keys)

    def end(self):
        """The exit code, with the whole screen in `seen`."""
        deadline = time.monotonic() + DEADLINE_S
        while self.read():
            assert time.monotonic() < deadline, self.seen
        return self.process.wait(DEADLINE_S)

    def close(self):
        """Leave nothing behind, however the test went."""
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    @property
    def children(self):
        return [child.pid for child in psutil.Process(self.process.pid).children()]


@pytest.fixture
def terminal():
    """Makes terminals."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, **options):
            made = Terminal(*arguments, **options)
            stack.callback(made.close)
            return made

        yield start


def test_the_answer_and_its_statistics(terminal, model):
    screen = terminal("ask", model, "say hello", "-t", "0")
    assert screen.end() == 0
    lines = screen.seen.decode().replace("\r\n", "\n").splitlines()
    assert lines[-2].endswith("hello")
    assert re.search(r"\[model: 5 tokens, .* tokens/s, first after .* s, .*loaded in .* s\]", lines[-1])


def test_quiet_is_the_answer_alone(terminal, model):
    screen = terminal("ask", model, "say hello", "-t", "0", "--quiet")
    assert screen.end() == 0
    assert screen.seen == b"hello\r\n"


def test_what_the_model_writes_does_not_act_on_the_terminal(terminal, model):
    screen = terminal("ask", model, "say \x1b]0;owned\x07a\x1b[2J\x9b31m\tb\nc", "-t", "0", "--quiet")
    assert screen.end() == 0
    assert screen.seen == b"]0;owneda[2J31m\tb\r\nc\r\n"


def test_ctrl_c_ends_with_130_and_keeps_what_was_printed(terminal, model):
    screen = terminal("ask", model, "slow 0.01;count 100000", "-t", "0")
    screen.wait_for(rb"0 1 2 3 ")
    engines = screen.children
    screen.type(b"\x03")
    assert screen.end() == 130
    assert b"Traceback" not in screen.seen
    assert re.search(rb"0 1 2 3 [\d \^C]*\r\n\[model: .*interrupted\]\r\n$", screen.seen)
    assert engines
    assert not any(psutil.pid_exists(pid) for pid in engines)


def test_ctrl_c_with_json_still_gives_the_object(terminal, model, tmp_path):
    begun = tmp_path / "begun"
    with (tmp_path / "out.json").open("wb") as out:
        question = f"slow 0.02;touch {begun} at 5;count 100000"
        screen = terminal("ask", model, question, "-t", "0", "--json", stdout=out)
        deadline = time.monotonic() + DEADLINE_S
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        screen.type(b"\x03")
        assert screen.end() == 130
    result = json.loads((tmp_path / "out.json").read_bytes())
    assert result["finish_reason"] == "cancelled"
    assert result["error"] == {"code": 130, "message": "interrupted"}  # as other commands have it
    assert "0 1 2 3 4 5".startswith(result["text"][:10])


def test_ctrl_c_while_it_loads(terminal, tmp_path):
    (tmp_path / "hang").write_bytes(b"")
    screen = terminal("ask", str(tmp_path / "hang"), "hello")
    screen.wait_for(rb"loading 50%")
    engines = screen.children
    screen.type(b"\x03")
    assert screen.end() == 130
    assert b"Traceback" not in screen.seen
    assert engines
    assert not any(psutil.pid_exists(pid) for pid in engines)


def test_two_ctrl_c_leave_an_engine_that_does_not_listen(terminal, model):
    screen = terminal("ask", model, "slow 0.01;hang at 9;count 100000", "-t", "0")
    screen.wait_for(rb"0 1 2 3")
    time.sleep(1.0)
    screen.type(b"\x03")
    time.sleep(0.2)
    screen.type(b"\x03")
    assert screen.end() == 130
    assert b"Traceback" not in screen.seen


def test_impatience_does_not_spoil_the_end(terminal, model):
    screen = terminal("ask", model, "slow 0.01;count 100000", "-t", "0")
    screen.wait_for(rb"0 1 2 3 ")
    for _ in range(5):
        screen.type(b"\x03")
        time.sleep(0.05)
    assert screen.end() == 130
    assert b"Traceback" not in screen.seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_engine_killed_twenty_times_is_told_in_one_line_each(terminal, model):
    for _ in range(20):
        screen = terminal("ask", model, "slow 0.01;count 100000", "-t", "0", "--quiet")
        screen.wait_for(rb"0 1 2 ")
        (engine,) = screen.children
        os.kill(engine, signal.SIGKILL)
        assert screen.end() == 8
        *answer, line = screen.seen.decode().splitlines()
        assert line == (
            "edgechat: the engine was killed (SIGKILL): try again; if memory is short, "
            "choose a smaller model or a smaller --ctx, or close other programs"
        )
        assert answer[0].startswith("0 1 2 ")
        assert len(answer) == 1


def test_a_killed_ask_leaves_no_engine(terminal, model):
    screen = terminal("ask", model, "slow 0.01;count 100000", "-t", "0")
    screen.wait_for(rb"0 1 2 ")
    (engine,) = screen.children
    screen.process.kill()
    screen.end()
    deadline = time.monotonic() + 20
    while psutil.pid_exists(engine) and time.monotonic() < deadline:
        if psutil.Process(engine).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    assert not psutil.pid_exists(engine)
