"""Huge pages: who offers them, and what a process is started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat import huge_pages
from edgechat.engine.process.client import EngineClient
from edgechat.records import LoadSettings

ASKED = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def _root(tmp_path: Path, modes: str) -> Path:
    path = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    path.parent.mkdir(parents=True)
    path.write_text(modes + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("modes", "libc", "expected"),
    [
        ("always [madvise] never", "glibc 2.35", True),
        ("always [madvise] never", "glibc 2.41", True),
        ("always [madvise] never", "glibc 3.0", True),
        ("always [madvise] never", "glibc 2.34", False),
        ("always [madvise] never", "glibc 2.9", False),
        ("always [madvise] never", "", False),
        ("always [madvise] never", "glibc unknown", False),
        ("[always] madvise never", "", True),
        ("always madvise [never]", "glibc 2.41", False),
        ("", "glibc 2.41", False),
    ],
)
def test_who_offers_them(tmp_path: Path, modes: str, libc: str, expected: bool) -> None:
    assert huge_pages.available(_root(tmp_path, modes), libc) is expected


def test_a_system_without_them(tmp_path: Path) -> None:
    assert not huge_pages.available(tmp_path, "glibc 2.41")
    assert not huge_pages.in_use(ASKED, tmp_path, "glibc 2.41")


def test_a_process_that_was_not_started_with_them(tmp_path: Path) -> None:
    root = _root(tmp_path, "always [madvise] never")
    assert huge_pages.in_use(ASKED, root, "glibc 2.41")
    assert not huge_pages.in_use({}, root, "glibc 2.41")
    assert not huge_pages.in_use({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=10"}, root, "glibc 2.41")
    assert not huge_pages.in_use(ASKED, root, "glibc 2.34")


def test_always_needs_no_asking(tmp_path: Path) -> None:
    assert huge_pages.in_use({}, _root(tmp_path, "[always] madvise never"), "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        (
            "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1",
            "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1",
        ),
    ],
)
def test_what_a_person_set_stays(before: str | None, after: str) -> None:
    given = {"HOME": "/root"} if before is None else {"HOME": "/root", "GLIBC_TUNABLES": before}
    assert huge_pages.environment(given) == {"HOME": "/root", "GLIBC_TUNABLES": after}


@pytest.mark.skipif(not huge_pages.available(), reason="this system has no huge pages on request")
def test_a_process_gets_them() -> None:
    """What the kernel says of 64 MiB that were allocated and written."""
    program = (
        "import ctypes, re, sys\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        "block = libc.malloc(ctypes.c_size_t(64 << 20)); ctypes.memset(block, 1, 64 << 20)\n"
        "kib = re.search(r'AnonHugePages: +(\\d+)', open('/proc/self/smaps_rollup').read())[1]\n"
        "sys.stdout.write(kib)\n"
    )

    def kib(environment: dict[str, str]) -> int:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        return int(done.stdout)

    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    assert kib(huge_pages.environment(plain)) > kib(plain) + (32 << 10)


@pytest.mark.skipif(not huge_pages.available(), reason="this system has no huge pages on request")
def test_a_settled_process_keeps_what_it_has_and_gets_no_more() -> None:
    program = (
        "import ctypes, re\n"
        "from edgechat import huge_pages\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        "def kib():\n"
        "    ctypes.memset(libc.malloc(ctypes.c_size_t(64 << 20)), 1, 64 << 20)\n"
        "    return int(re.search(r'AnonHugePages: +(\\d+)', open('/proc/self/smaps_rollup').read())[1])\n"
        "before = kib(); huge_pages.settle(); print(before, kib())\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=huge_pages.environment(), capture_output=True, check=True)
    before, after = (int(word) for word in done.stdout.split())
    assert before > 32 << 10
    assert after == before


async def test_the_engine_maps_weights_only_without_them(starter_gguf: Path) -> None:
    client = await EngineClient.start(LoadSettings(str(starter_gguf), n_ctx=512, n_threads=1))
    try:
        assert client.info.mapped is not huge_pages.available()
    finally:
        await client.close()


async def test_mapping_can_be_asked_for(starter_gguf: Path) -> None:
    settings = LoadSettings(str(starter_gguf), n_ctx=512, n_threads=1, use_mmap=True)
    client = await EngineClient.start(settings)
    try:
        assert client.info.mapped
    finally:
        await client.close()
