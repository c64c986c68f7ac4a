"""The whole app with the starter model, in a terminal of its own: killed, stopped, crashed.

Nothing here is timed but what is claimed about time: what was on the screen a second before the kill is
in the database after it.
"""

import contextlib
import os
import pty
import random
import re
import signal
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgechat.history import HistoryStore, Status
from tests.edgechat.chat.terminal import PATIENCE_S, Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STORY = "Tell me a very long story about the sea, with many ships."


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_it(*options: str, **changes: Any) -> Terminal:
        opened.append(Terminal(tmp_path, "--temperature", "0", *options, **changes))
        return opened[-1]

    yield open_it
    for terminal in opened:
        terminal.close()


def wait_for_the_end_of(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "an engine was left behind"
        time.sleep(0.05)


def end_without_a_window(terminal: Terminal, number: signal.Signals | None) -> int:
    """Close the window in mid-answer; the app's exit code, once its engine has ended too and all is saved.

    Args:
        terminal: whose window it is.
        number: a signal that the app gets then; None: it gets none.
    """
    terminal.ask(STORY)
    terminal.until(lambda: terminal.messages()[1].content)
    engine = terminal.engine()
    os.close(terminal._slave)
    os.close(terminal.master)
    if number is not None:
        terminal.process.send_signal(number)
    code = terminal.wait()
    assert terminal.messages()[1].content
    assert engine is not None
    wait_for_the_end_of(engine)
    terminal.master, terminal._slave = pty.openpty()
    return code


def test_the_app_is_killed_twenty_times_in_mid_answer(open_terminal) -> None:
    chance = random.Random(2)
    cut = compared = 0
    for number in range(20):
        terminal = open_terminal()
        question = f"{STORY} Story number {number}."
        terminal.ask(question)  # while the model is being loaded
        terminal.until(lambda t=terminal, q=question: t.answer_to(q) and len(t.answer_lines()) > 1)
        time.sleep(chance.random())
        shown = terminal.answer_lines()[:-1]  # the last line still grows
        engine = terminal.engine()
        time.sleep(1.0)  # what is claimed: this may be lost, and no more
        terminal.process.send_signal(signal.SIGKILL)
        assert terminal.wait() == -signal.SIGKILL
        asked, answer = terminal.messages()
        assert (asked.content, asked.status) == (question, Status.COMPLETE)
        cut += answer.status is Status.PARTIAL  # else it had ended just before
        words = _words(answer.content)
        for line in shown:
            assert _words(line) in words
            compared += 1
        assert engine is not None
        wait_for_the_end_of(engine)
        wait_for_the_terminal(terminal)
        terminal.close()
    assert cut >= 15
    assert compared >= 15
    store = HistoryStore(terminal.database)
    assert len(store.search("")) == 20
    store.close()


def wait_for_the_terminal(terminal: Terminal) -> None:
    """Until it is as it was before the app: its modes, its screen and its cursor, and nothing is reported."""
    left = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?2004l", b"\x1b[<u")
    deadline = time.monotonic() + PATIENCE_S
    while termios.tcgetattr(terminal._slave) != terminal.modes or any(
        terminal.output.rfind(one) < terminal.output.rfind(b"\x1b[?1049h") for one in left
    ):
        assert time.monotonic() < deadline, terminal.output[-500:]
        time.sleep(0.02)


def _words(text: str) -> str:
    """A text without what Markdown makes of it on the screen."""
    return " ".join(re.findall(r"\w+", text))


def test_the_engine_is_killed_twenty_times_in_mid_answer(open_terminal) -> None:
    terminal = open_terminal("--max-tokens", "120", "--ctx", "2048")
    killed = 0
    for number in range(20):
        terminal.until(lambda: "● ready" in terminal.text and "Try one of these" in terminal.text)
        question = f"{STORY} Story number {number}."
        terminal.ask(question)
        shown = terminal.until(lambda question=question: terminal.answer_to(question))
        engine = terminal.engine()
        if engine is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGKILL)
        terminal.until(lambda: terminal.messages()[1].status is not Status.PARTIAL)
        answer = terminal.messages()[1]
        assert answer.content.startswith(shown.content)
        assert answer.content
        if answer.status is Status.FAILED:  # else it had ended just before
            killed += 1
            terminal.until(lambda: "cut short" in terminal.text and "×" in terminal.text)
            assert terminal.text.count("×") == 1, "one line"
        terminal.until(lambda: "● ready" in terminal.text)
        terminal.ask("What is a sail?")
        terminal.until(lambda: terminal.messages()[3].status in {Status.COMPLETE, Status.LENGTH})
        assert "Traceback" not in terminal.text
        terminal.until(lambda: "● ready" in terminal.text)
        terminal.type("\x0e")  # Ctrl+N
    assert killed >= 15
    terminal.until(lambda: "Try one of these" in terminal.text)
    terminal.type("\x11")
    assert terminal.wait() == 0
    assert termios.tcgetattr(terminal._slave) == terminal.modes
    store = HistoryStore(terminal.database)
    assert len(store.search("")) == 20
    store.close()


@pytest.mark.parametrize(
    ("way", "code"),
    [("\x11", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
    ids=["Ctrl+Q", "SIGTERM", "SIGHUP", "SIGINT"],
)
def test_leaving_in_mid_answer(open_terminal, way: str | signal.Signals, code: int) -> None:
    terminal = open_terminal()
    terminal.ask(STORY)
    shown = terminal.until(lambda: terminal.messages()[1].content)
    engine = terminal.engine()
    if isinstance(way, str):
        terminal.type(way)
    else:
        terminal.process.send_signal(way)
    assert terminal.wait() == code
    answer = terminal.messages()[1]
    assert answer.status is Status.STOPPED
    assert answer.content.startswith(shown)
    assert termios.tcgetattr(terminal._slave) == terminal.modes
    terminal.close()
    ending = terminal.output[-200:]
    assert b"\x1b[?1049l" in ending, "back from the second screen"
    assert b"\x1b[?25h" in ending, "the cursor is there again"
    assert b"\x1b[?1000l" in terminal.output[-1000:], "the mouse is the terminal's again"
    assert b"Traceback" not in terminal.output
    assert engine is not None
    wait_for_the_end_of(engine)


def test_a_terminal_that_is_gone(open_terminal) -> None:
    """The window was closed: nobody reads what the app writes, and it ends all the same."""
    assert end_without_a_window(open_terminal(), signal.SIGHUP) != 0


def test_nothing_native_writes_on_the_terminal(open_terminal) -> None:
    terminal = open_terminal("--max-tokens", "8")
    terminal.ask("Hello")
    terminal.until(lambda: terminal.messages()[1].status is Status.LENGTH)
    terminal.until(lambda: "● ready" in terminal.text)
    for word in (b"llama_", b"ggml", b"load_", b"print_info", b"warning"):
        assert word not in terminal.output
    terminal.type("\x11")
    assert terminal.wait() == 0


def test_a_terminal_that_is_gone_without_a_signal(open_terminal) -> None:
    """SIGHUP goes to the leader of the terminal's session only: behind `setsid` nobody tells the app."""
    assert end_without_a_window(open_terminal(), None) == 128 + signal.SIGHUP


WITH_A_BUG = """
from edgechat.chat.screens.chat import ChatScreen
from edgechat.cli.app import run

def crash(self):
    raise ZeroDivisionError("injected [bold]here[/]")

ChatScreen.action_help = crash
run()
"""


def test_a_bug_of_ours_in_mid_answer(open_terminal) -> None:
    terminal = open_terminal(program=("-c", WITH_A_BUG))
    terminal.ask(STORY)
    shown = terminal.until(lambda: terminal.messages()[1].content)
    engine = terminal.engine()
    terminal.type("\x1bOP")  # F1
    assert terminal.wait() == 1
    assert termios.tcgetattr(terminal._slave) == terminal.modes
    answer = terminal.messages()[1]
    assert answer.status is Status.STOPPED
    assert answer.content.startswith(shown)
    terminal.close()
    _, _, after = terminal.output.rpartition(b"\x1b[?1049l")
    assert b"\x1b[?25h" in after
    lines = [line for line in after.decode().splitlines() if "edgechat" in line]
    assert len(lines) == 1
    assert "a bug of edgechat: ZeroDivisionError: injected [bold]here[/]" in lines[0]
    assert "Traceback" not in after.decode()
    trace = Path(lines[0].split("Its trace is in ")[1].strip())
    assert "action_help" in trace.read_text() or "crash" in trace.read_text()
    assert engine is not None
    wait_for_the_end_of(engine)


@pytest.mark.parametrize("kind", ["dumb", "unknown", "DUMB"])
def test_a_terminal_that_cannot_move_its_cursor_is_refused(open_terminal, kind: str) -> None:
    terminal = open_terminal(term=kind)
    assert terminal.wait() == 6
    said = f"edgechat: TERM is '{kind}', which can't show the chat"
    terminal.close()
    assert terminal.output.decode().startswith(said)
    assert b"\x1b" not in terminal.output


def test_what_is_typed_before_the_app_is_drawn_is_not_lost(open_terminal) -> None:
    terminal = open_terminal()
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    for letter in text:
        terminal.type(letter)
        time.sleep(0.05)
    terminal.until(lambda: f"› {text}" in terminal.text)
    terminal.type("\x11")
    assert terminal.wait() == 0


def test_the_oldest_of_two_hundred_messages_is_reached_with_page_up(open_terminal, tmp_path) -> None:
    store = HistoryStore(tmp_path / "data" / "history.db")
    conversation = store.create("Long", "starter", "")
    for number in range(200):
        role = "assistant" if number % 2 else "user"
        store.add(conversation.id, role, f"message {number} of it", status=Status.COMPLETE)
    store.close()
    terminal = open_terminal("--continue")
    terminal.until(lambda: "message 199 of it" in terminal.text)
    end = time.monotonic() + 120
    while "message 0 of it" not in terminal.text and time.monotonic() < end:
        before = terminal.text
        terminal.type("\x1b[5~")
        deadline = time.monotonic() + 1  # a press that comes while messages are fetched may do nothing
        while terminal.text == before and time.monotonic() < deadline:
            time.sleep(0.02)
    terminal.until(lambda: "message 0 of it" in terminal.text)
    terminal.type("\x1b[1;5F")  # Ctrl+End
    terminal.until(lambda: "message 199 of it" in terminal.text)
    terminal.type("\x1b[1;5H")  # Ctrl+Home
    terminal.until(lambda: "message 0 of it" in terminal.text)


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    terminal = Terminal(tmp_path / "file" / "home", "--temperature", "0", "--max-tokens", "8")
    try:
        terminal.until(lambda: "Nothing will be saved:" in terminal.text)
        terminal.ask("Say hello.")
        terminal.until(lambda: terminal.answer_lines() and "ready" in terminal.text)
        terminal.type("\x11")  # Ctrl+Q
        assert terminal.wait() == 0
    finally:
        terminal.close()
