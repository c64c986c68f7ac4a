"""Asks llama.cpp how it was built, in a process of its own: that process may die of the question."""

import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from edgechat.doctor.findings import Finding, Severity

MODULE = "edgechat.runtimes.llamacpp.backends"
TIMEOUT_S = 60.0
TOPIC = "llama.cpp"
REINSTALL = "pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36,<0.3.37'"
MEND = "install edgechat by `make setup`, or compile llama.cpp with GCC 14 or newer, or Clang"
REBUILD = f"CMAKE_ARGS='{{flags}}' {REINSTALL}"


@dataclass(frozen=True, slots=True)
class Build:
    """What is built in."""

    backends: tuple[str, ...] = ()


def check_llama(command: tuple[str, ...] = (sys.executable, "-m", MODULE)) -> tuple[Build | None, Finding]:
    """How llama.cpp was built and what it finds here.

    Args:
        command: what prints the facts as JSON.

    Returns:
        The build, None where it could not be asked, and the finding.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return None, _fault(
            f"llama.cpp gave no answer within {TIMEOUT_S:.0f} s", "look whether the machine is busy"
        )
    except OSError as error:
        return None, _fault(f"llama.cpp could not be asked: {error}", f"run `{REINSTALL}`")
    if done.returncode:
        return None, _failure(done.returncode, done.stderr.decode("utf-8", "replace").strip())
    try:
        facts = msgspec.json.decode(done.stdout, type=dict[str, Any])
    except msgspec.DecodeError:
        return None, _fault("llama.cpp's answer could not be read", f"run `{REINSTALL}`")
    return _build(facts)


def _build(facts: dict[str, Any]) -> tuple[Build, Finding]:
    backends = tuple(str(name) for name in facts.get("backends", ()))
    devices = [
        str(device.get("description") or device.get("name")) if isinstance(device, dict) else str(device)
        for device in facts.get("devices", ())
    ]
    bindings = facts.get("bindings", "?")
    found = (
        f"{facts.get('library', '?')} (llama-cpp-python {bindings}), built for {', '.join(backends) or '?'}"
    )
    if devices:
        found += f", devices: {', '.join(devices)}"
    if facts.get("extra_buffers") is False:
        slow = "its compiler sets up this CPU's matrix unit (AMX) wrongly, so it is left alone, which is slow"
        return Build(backends), Finding(TOPIC, found, Severity.WARNING, slow, MEND, facts)
    return Build(backends), Finding(TOPIC, found, data=facts)


def _failure(code: int, complaint: str) -> Finding:
    if code == -signal.SIGILL:
        return _fault(
            "llama.cpp was built for a newer CPU than this one (illegal instruction)",
            f"build it here: `{REBUILD.format(flags='-DGGML_NATIVE=on')}`",
        )
    if code < 0:
        return _fault(f"llama.cpp's process died ({_signal(-code)})", f"run `{REINSTALL}`")
    last = complaint.splitlines()[-1] if complaint else f"exit code {code}"
    return _fault(f"llama.cpp can't be loaded: {last}", f"run `{REINSTALL}`")


def _fault(problem: str, remedy: str) -> Finding:
    return Finding(TOPIC, "not usable", Severity.FAULT, problem, remedy)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
