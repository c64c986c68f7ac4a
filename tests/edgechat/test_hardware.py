"""Cores and memory on machines made of files."""

import os
from pathlib import Path

import psutil
import pytest

from edgechat import hardware
from edgechat.errors import UsageError
from edgechat.hardware import Memory


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _cores(root: Path, siblings: list[str], name: str = "core_cpus_list") -> Path:
    return _write(
        root,
        {f"sys/devices/system/cpu/cpu{n}/topology/{name}": text + "\n" for n, text in enumerate(siblings)},
    )


HYPERTHREADED = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyper_threads_count_once(tmp_path: Path, name: str) -> None:
    root = _cores(tmp_path, HYPERTHREADED, name)
    assert hardware.physical_cores(root, range(8)) == 4


def test_affinity_is_respected(tmp_path: Path) -> None:
    root = _cores(tmp_path, HYPERTHREADED)
    assert hardware.physical_cores(root, {0, 1, 2}) == 3
    assert hardware.physical_cores(root, {0, 4}) == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 4),
        ("300000 100000", 3),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 4),
        ("", 4),
    ],
)
def test_quota_of_version_2(tmp_path: Path, quota: str, cores: int) -> None:
    root = _cores(tmp_path, HYPERTHREADED)
    _write(root, {"proc/self/cgroup": "0::/jobs/one\n", "sys/fs/cgroup/jobs/cpu.max": quota})
    (root / "sys/fs/cgroup/jobs/one").mkdir(parents=True)
    assert hardware.physical_cores(root, range(8)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("200000", 2)])
def test_quota_of_version_1(tmp_path: Path, quota: str, cores: int) -> None:
    root = _cores(tmp_path, HYPERTHREADED)
    group = "sys/fs/cgroup/cpu,cpuacct"
    _write(
        root,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            f"{group}/cpu.cfs_quota_us": quota,
            f"{group}/cpu.cfs_period_us": "100000",
        },
    )
    assert hardware.physical_cores(root, range(8)) == cores


def test_a_machine_that_tells_nothing_has_a_core(tmp_path: Path) -> None:
    assert 1 <= hardware.physical_cores(tmp_path, {0, 1, 2}) <= 3
    assert hardware.physical_cores(tmp_path, set()) == 1


def test_this_machine() -> None:
    cores = hardware.physical_cores()
    assert 1 <= cores <= (os.cpu_count() or 1)
    cpu = hardware.cpu()
    assert cpu.physical_cores == cores
    assert cpu.name
    assert cpu.machine


@pytest.fixture
def ram(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = type("svmem", (), {"total": 16 * 2**30, "available": 10 * 2**30})()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)


@pytest.mark.usefixtures("ram")
def test_memory_without_limits(tmp_path: Path) -> None:
    assert hardware.memory(tmp_path) == Memory(16 * 2**30, 10 * 2**30)


@pytest.mark.usefixtures("ram")
def test_memory_limit_of_version_2(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.current": str(2**30),
            "sys/fs/cgroup/a/memory.max": str(4 * 2**30),
            "sys/fs/cgroup/a/memory.current": str(3 * 2**30),
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {2**30}\n",
        },
    )
    assert hardware.memory(root) == Memory(4 * 2**30, 2 * 2**30)


@pytest.mark.usefixtures("ram")
def test_memory_limit_of_version_1(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**31),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(2**30),
        },
    )
    assert hardware.memory(root) == Memory(2**31, 2**30)
    _write(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)})
    assert hardware.memory(root) == Memory(16 * 2**30, 10 * 2**30)


@pytest.mark.usefixtures("ram")
@pytest.mark.parametrize(
    ("text", "limit", "margin"),
    [
        ("6G", 6 * 2**30, 2**28),
        ("800M", 800 * 2**20, 40 * 2**20),  # a twentieth: edgechat keeps it, no kernel kills for it
        ("1.5gib", 3 * 2**29, 3 * 2**29 // 20),
        ("4096000000", 4096000000, 204800000),
        (" 2000 kB ", 2048000, 102400),
    ],
)
def test_a_limit_of_the_persons_own(
    text: str, limit: int, margin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", text)
    assert hardware.memory(tmp_path) == Memory(limit, limit, margin)


@pytest.mark.usefixtures("ram")
def test_a_limit_above_what_there_is_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("1T", "10G", ""):
        monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", text)
        memory = hardware.memory(tmp_path)
        assert (memory.available, memory.margin) == (10 * 2**30, 2**28)
    monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", "6")
    with pytest.raises(UsageError, match="EDGECHAT_MEMORY_LIMIT=6 lacks a unit: give 6GB"):
        hardware.memory(tmp_path)
    for text in ("much", "-1G", "5X"):
        monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", text)
        with pytest.raises(UsageError, match="EDGECHAT_MEMORY_LIMIT"):
            hardware.memory(tmp_path)


@pytest.mark.usefixtures("ram")
def test_a_limit_just_below_what_is_free_leaves_the_system_its_margin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": str(2**30),
            "sys/fs/cgroup/a/memory.current": "0",
        },
    )
    assert hardware.memory(root) == Memory(2**30, 2**30, 2**28)
    monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", "1023M")
    assert hardware.memory(root) == Memory(1023 * 2**20, 1023 * 2**20, 255 * 2**20)


def test_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "DARWIN", False)
    _write(tmp_path, {"proc/cpuinfo": "model name\t: X\nflags\t\t: fpu pni avx avx2 avx512vbmi strange\n"})
    assert hardware.cpu_features(tmp_path) == {"sse3", "avx", "avx2", "avx512_vbmi"}
    _write(tmp_path, {"proc/cpuinfo": "processor: 0\nFeatures\t: fp asimd asimddp i8mm\n"})
    assert hardware.cpu_features(tmp_path) == {"neon", "asimddp", "i8mm"}


def test_what_is_held_counts_into_the_own_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = psutil.virtual_memory().available
    monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", "64M")
    assert hardware.memory(tmp_path, held=2**20).available == 63 * 2**20
    assert hardware.memory(tmp_path, held=2**30).available == 0
    monkeypatch.delenv("EDGECHAT_MEMORY_LIMIT")
    assert hardware.memory(tmp_path, held=2**40).available > free // 2


@pytest.mark.parametrize(
    ("running", "free"), [("1", 4), ("3", 2), ("9", 0), ("0", 4), ("", None), ("x", None)]
)
def test_cpus_that_nobody_else_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: str, free: int | None
) -> None:
    """The thread that asks runs itself."""
    monkeypatch.setattr(hardware, "_allowed", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    _write(tmp_path, {"proc/stat": f"cpu  1 2 3\nctxt 77\nprocs_running {running}\nprocs_blocked 0\n"})
    assert hardware.free_cpus(tmp_path) == free


def test_threads_on_cpus_that_are_not_ours_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_allowed", lambda: {0, 1})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    _write(tmp_path, {"proc/stat": "procs_running 1\n"})
    assert hardware.free_cpus(tmp_path) is None
    assert hardware.free_cpus(tmp_path / "none") is None
