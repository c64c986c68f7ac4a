"""Libraries of llama.cpp whose code for AMX is right and wrong, and the header that mends it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from models.amx import KERNEL, MARK, is_broken

HEADER = Path(__file__).parents[2] / "packaging" / "amx-tile-config.h"
HAS_TILES = Path("/proc/cpuinfo").is_file() and "amx_tile" in Path("/proc/cpuinfo").read_text()
GCC = shutil.which("g++")

SOURCE = r"""
#include <cstdint>
#include <cstdio>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
struct Config { uint8_t palette, start_row, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; };
__attribute__((noinline)) void configure() {
    Config config{};
    config.palette = 1;
    for (int i = 0; i < 8; i++) { config.rows[i] = 16; config.row_bytes[i] = 64; }
    _tile_loadconfig(&config);
}
int main() {
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 77;
    configure();
    alignas(64) uint8_t now[64];
    _tile_storeconfig(now);
    for (int i = 0; i < 64; i++) printf("%d ", now[i]);
}
"""


def library(*parts: bytes) -> bytes:
    return b"\x7fELF\0" + b"\0".join(parts) + b"\0"


@pytest.mark.parametrize(
    ("version", "broken"),
    [
        (b"9.4.0", True),
        (b"11.4.0", True),
        (b"11.5.0", False),
        (b"12.2.0", True),
        (b"12.4.0", False),
        (b"13.2.0", True),
        (b"13.3.0", False),
        (b"14.1.0", False),
        (b"15.2.1", False),
    ],
)
def test_releases_of_gcc_before_its_bug_114098_was_mended(version: bytes, broken: bool) -> None:
    compiler = b"GCC: (Some Linux " + version + b"-14+x1) " + version
    assert is_broken(library(KERNEL, compiler)) == broken
    assert not is_broken(library(compiler))  # compiled without AMX
    assert not is_broken(library(KERNEL, compiler, MARK))


def test_other_compilers_are_right() -> None:
    assert not is_broken(library(KERNEL, b"clang version 17.0.6"))


@pytest.mark.skipif(not HAS_TILES or GCC is None, reason="needs a CPU with AMX, and g++")
def test_the_header_has_the_whole_configuration_loaded(tmp_path: Path) -> None:
    """As Intel's manual lays it out: palette, first row, 14 bytes of nothing, bytes a row, rows."""
    (tmp_path / "a.cpp").write_text(SOURCE)
    command = [GCC, "-O3", "-mamx-tile", "-mamx-int8", "-include", HEADER, "a.cpp", "-o", "a"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=100)  # type: ignore[arg-type]
    done = subprocess.run([tmp_path / "a"], capture_output=True, check=False, timeout=100)
    if done.returncode == 77:
        pytest.skip("the system lets nobody use AMX")
    assert done.returncode == 0
    expected = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
    assert [int(word) for word in done.stdout.split()] == expected
    assert MARK in (tmp_path / "a").read_bytes()
