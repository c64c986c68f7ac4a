"""What a dead engine died of, in one line."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from edgechat.errors import EngineCrashedError

TAIL_BYTES = 64 * 1024

# What llama.cpp and the C++ runtime write before they abort; the last such line tells most.
_ASSERTS = re.compile(
    r"GGML_ASSERT|GGML_ABORT|[Aa]ssertion .*failed|terminate called|what\(\):"
    r"|out of memory|failed to allocate|CUDA error|^\S+\.(?:c|cpp|cu|h|hpp|m|mm):\d+: "
)
# How they say that the system has refused them memory.
_REFUSED = re.compile(r"mem_buffer != NULL|out of memory|failed to allocate|bad_alloc")
_REBUILD = (
    'llama.cpp was built for another CPU; build it for this one: CMAKE_ARGS="-DGGML_NATIVE=on" '
    "python -m pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "
    "llama-cpp-python"
)
_MEMORY = "choose a smaller model or a smaller --ctx, or close other programs"


class EngineDied(EngineCrashedError):
    """The engine's process ended while it was needed. The message says of what, in one line."""

    hopeless = False
    """It would die of the same again, whatever is asked of it."""
    advice = ""
    """What to do, for one who is not told in the message, and for whom no other engine is started."""


@dataclass(frozen=True, slots=True)
class Death:
    """What is known of an end."""

    returncode: int | None
    """As Popen's: negative for a signal; None where it had to be given up."""
    log: Path
    loading: bool = False
    """It died before its model was loaded."""
    oom_kill: bool = False
    """The system killed a process for memory in the meantime."""
    hung: bool = False
    """It was ended by us, because it neither worked nor answered."""


def obituary(death: Death) -> EngineDied:
    """What everyone is told who waits for the engine."""
    error = EngineDied(describe(death))
    error.hopeless = death.returncode == -signal.SIGILL
    if death.returncode == -signal.SIGKILL and not death.oom_kill and not death.hung:
        error.advice = f"try again; if memory is short, {_MEMORY}"
    elif death.returncode in (-signal.SIGTERM, -signal.SIGHUP):
        error.advice = "try again"
    return error


def describe(death: Death) -> str:
    """One line: what happened, of what, and what to do."""
    when = " while it loaded the model" if death.loading else ""
    return f"the engine {_what(death)}{when}{_why(death)}"


def _what(death: Death) -> str:
    if death.hung:
        return "stopped answering and was ended"
    code = death.returncode
    if code is None:
        return "was lost"
    if code < 0:
        name = signal_name(-code)
        return f"was killed ({name})" if name in {"SIGKILL", "SIGTERM", "SIGHUP"} else f"crashed ({name})"
    return "ended by itself" if code == 0 else f"ended with exit code {code}"


def _why(death: Death) -> str:
    name = signal_name(-death.returncode) if death.returncode is not None and death.returncode < 0 else ""
    if name == "SIGILL":
        return f": {_REBUILD}"
    if name == "SIGBUS":
        return ": the model's file became shorter, or the disk failed; see: edgechat models verify"
    last = last_words(death.log)
    killed_for_memory = name == "SIGKILL" and death.oom_kill and not death.hung
    if killed_for_memory or (name == "SIGABRT" and _REFUSED.search(last)):
        return f": memory ran out; {_MEMORY}"
    if last and (name == "SIGABRT" or (death.returncode is not None and death.returncode > 0)):
        return f": {last}"
    return f"; its log: {death.log}" if death.log.exists() and name != "SIGKILL" else ""


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_words(log: Path) -> str:
    """The line of a log that tells most about the end: the last assertion, else a Python error; or ""."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    lines = [line for line in ("".join(filter(str.isprintable, line)).strip() for line in lines) if line]
    for line in reversed(lines):
        if _ASSERTS.search(line):
            return line[:300]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1][:300]
    return ""


def count_oom_kills() -> int:
    """How many processes the system has killed for memory, in our control group and as a whole."""
    total = _counter(Path("/proc/vmstat"), "oom_kill")
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return total
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            total += _counter(Path(f"/sys/fs/cgroup{path}/memory.events"), "oom_kill")
        elif "memory" in controllers.split(","):
            total += _counter(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"), "oom_kill")
    return total


def _counter(path: Path, name: str) -> int:
    """The number behind a name in a kernel's table; 0 where there is none."""
    try:
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
