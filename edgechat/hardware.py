"""What the machine has, and how much of it this process may use: cores, memory, the CPU's features.

Containers and job managers lend less than the machine has. Affinity and control groups (versions 1 and 2)
are read here, so that nothing else needs to know of them.
"""

import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgechat.errors import UsageError
from models.sizes import amount, lacks_unit

ROOT = Path("/")
DARWIN = platform.system() == "Darwin"
MARGIN = 256 * 2**20
"""Main memory that is left to the rest of the system, which would swap or be killed for want of it."""
MEMORY_LIMIT = "EDGECHAT_MEMORY_LIMIT"
"""Environment: no more main memory is planned with than this, to leave the rest to other programs."""
OFF = 0.05
"""Of EDGECHAT_MEMORY_LIMIT, what isn't planned with: plans may be off by as much, and the limit is kept."""

# What llama.cpp's CPU kernels look for, as /proc/cpuinfo and sysctl name it.
KNOWN_FEATURES = frozenset(
    {
        "sse3", "ssse3", "sse4_1", "sse4_2", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni",
        "avx512f", "avx512bw", "avx512vl", "avx512_vbmi", "avx512_vnni", "avx512_bf16", "amx_tile",
        "amx_int8", "amx_bf16", "neon", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme",
    }
)  # fmt: skip
ALIASES = {
    "pni": "sse3",
    "avx512vbmi": "avx512_vbmi",
    "asimd": "neon",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
DARWIN_ARM = {
    "hw.optional.AdvSIMD": "neon",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes, as far as this process may use it."""

    total: int
    available: int
    """What can be taken without swapping; file caches count as available."""
    margin: int = MARGIN
    """What of `available` should stay free."""

    @property
    def room(self) -> int:
        """Bytes to plan with."""
        return max(0, self.available - self.margin)


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor."""

    name: str
    machine: str
    """The instruction set's name, such as "x86_64"."""
    physical_cores: int
    """That this process may use."""
    logical_cores: int
    """That this process may use."""
    features: frozenset[str]
    """Those that matter to llama.cpp's kernels, such as "avx2"."""


def cpu() -> Cpu:
    """The processor, as far as this process may use it."""
    return Cpu(
        name=_cpu_name(),
        machine=platform.machine(),
        physical_cores=physical_cores(),
        logical_cores=len(_allowed()),
        features=cpu_features(),
    )


def physical_cores(root: Path = ROOT, allowed: Iterable[int] | None = None) -> int:
    """Cores that this process may use, hyper-threads of one core counted once; at least 1.

    Affinity and the CPU quota of control groups are respected. On a Mac with cores of two kinds only the
    fast ones count, since llama.cpp's threads wait for the slowest.

    Args:
        root: where /sys and /proc are.
        allowed: numbers of the CPUs that may be used; None asks the system.
    """
    cores = _cores_of(root, _allowed() if allowed is None else set(allowed))
    quota = _cpu_quota(root)
    # Half a core can't be had by half a thread: rounding down keeps threads from waiting for the quota.
    return max(1, cores if quota is None else min(cores, int(quota)))


def memory(root: Path = ROOT, *, held: int = 0) -> Memory:
    """Main memory, no more of it than control groups and EDGECHAT_MEMORY_LIMIT allow.

    Args:
        root: where /sys and /proc are.
        held: bytes of the variable's limit that are taken already.

    Raises:
        UsageError: the variable isn't a size.
    """
    system = psutil.virtual_memory()
    total, available = int(system.total), int(system.available)
    for limit, free in _memory_limits(root):
        total = min(total, limit)
        available = min(available, free)
    own = _own_limit(os.environ.get(MEMORY_LIMIT, ""))
    room = available - MARGIN
    if own is not None:
        total, available = min(total, own), min(available, own - held)
        room = min(room, own - held - min(MARGIN, int(own * OFF)))
    return Memory(total, max(0, available), available - room)


def own_memory() -> int:
    """Bytes of main memory that this process holds, mapped files included as far as they were read."""
    return int(psutil.Process().memory_info().rss)


def _own_limit(text: str) -> int | None:
    """Bytes that a size such as "6G" or "800M" stands for; None for an empty text.

    Raises:
        UsageError: it isn't a size.
    """
    if not text.strip():
        return None
    if meant := lacks_unit(text):
        raise UsageError(f"{MEMORY_LIMIT}={text} lacks a unit: give {meant}, or whatever you mean")
    limit = amount(text, binary=True)
    if limit is None:
        raise UsageError(f"{MEMORY_LIMIT}={text}: give a size, such as 6G or 800M")
    return limit


def cpu_features(root: Path = ROOT) -> frozenset[str]:
    """The CPU's instruction set extensions that matter here; empty where the system doesn't tell."""
    if DARWIN:
        return _darwin_features()
    words = set(_cpuinfo(root, "flags").split()) | set(_cpuinfo(root, "Features").split())
    return frozenset(ALIASES.get(word, word) for word in words) & KNOWN_FEATURES


def idle_clock() -> Callable[[], float] | None:
    """A clock of the seconds in which the CPUs that this process may use were idle, all together.

    Returns:
        None: this system doesn't say, or doesn't let us see.
    """

    def idle() -> float:
        allowed = _allowed()
        times = psutil.cpu_times(percpu=True)
        return sum(
            one.idle + getattr(one, "iowait", 0.0) for number, one in enumerate(times) if number in allowed
        )

    try:
        idle()
    except (OSError, RuntimeError, psutil.Error):
        return None
    return idle


def free_cpus(root: Path = ROOT) -> int | None:
    """CPUs that no thread but the one that asks wants at this moment.

    Returns:
        None: this system doesn't say, or counts threads on CPUs that this process may not use.
    """
    n_cpus = len(_allowed())
    if n_cpus < (os.cpu_count() or 1):
        return None
    for line in _read(root / "proc/stat").splitlines():
        key, _, value = line.partition(" ")
        if key == "procs_running" and value.isdigit():
            return max(0, n_cpus - max(0, int(value) - 1))
    return None


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores_of(root: Path, allowed: set[int]) -> int:
    if DARWIN:
        fast = _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")
        return int(fast) if fast.isdigit() else len(allowed)
    siblings = set()
    for number in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        # The newer name comes first; both hold the hyper-threads of this CPU's core.
        siblings.add(
            _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list") or str(number)
        )
    if len(siblings) == len(allowed) and not (root / "sys/devices/system/cpu/cpu0/topology").is_dir():
        return min(len(allowed), psutil.cpu_count(logical=False) or len(allowed))
    return len(siblings)


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time that the control groups grant, or None for no limit."""
    quotas: list[float] = []
    for group in _groups(root, ("cpu", "cpu,cpuacct")):
        words = _read(group / "cpu.max").split()
        if not words:
            words = [_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and free bytes of each control group that has a limit."""
    for group in _groups(root, ("memory",)):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if not limit.isdigit() or int(limit) >= 2**60:  # version 1 writes "no limit" as a huge number
            continue
        cached = 0
        for line in _read(group / "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key in ("inactive_file", "total_inactive_file") and value.isdigit():
                cached = max(cached, int(value))  # the kernel gives these back when asked
        yield int(limit), int(limit) - (int(used) if used.isdigit() else 0) + cached


def _groups(root: Path, controllers: tuple[str, ...]) -> Iterator[Path]:
    """The folders of this process's control groups, innermost first, up to the root of the tree."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "":
            base = mount  # version 2
        elif set(names.split(",")) & set(controllers):
            base = mount / names
        else:
            continue
        inner = base / path.lstrip("/")
        # Inside a container the path may be the host's; the tree's root is then the container's own group.
        yield from (folder for folder in (inner, *inner.parents) if folder == base or base in folder.parents)


def _cpu_name() -> str:
    if DARWIN:
        return _sysctl("machdep.cpu.brand_string") or platform.processor()
    return _cpuinfo(ROOT, "model name") or platform.processor() or platform.machine()


def _cpuinfo(root: Path, field: str) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return value.strip()
    return ""


def _darwin_features() -> frozenset[str]:
    words = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}".lower().split()
    found = {ALIASES.get(word, word.replace("avx1.0", "avx")) for word in words}
    if platform.machine() == "arm64":
        found |= {name for key, name in DARWIN_ARM.items() if _sysctl(key) == "1"}
    return frozenset(found) & KNOWN_FEATURES


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
