"""Whether llama.cpp's kernels for AMX, the matrix unit of Intel's server processors, can be trusted here.

GCC before 11.5, 12.4, 13.3 and 14 tells its optimizer that LDTILECFG reads 8 bytes of the 64 (GCC's bug
114098). A llama.cpp that it compiled dies at the first batch of more than one token. Our own build mends the
intrinsic and leaves a mark (`packaging/amx-tile-config.h`); one that was installed otherwise may have none.
Without its extra buffer types llama.cpp leaves AMX alone.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

MARK = b"edgechat: ldtilecfg reads 64 bytes"
KERNEL = b"ggml_backend_amx_mul_mat"
"""In the names of a library that has them."""
COMPILER = re.compile(rb"GCC: \([^)\0]*\) (\d+)\.(\d+)")
MENDED = {11: 5, 12: 4, 13: 3}
"""The first right release of each series."""


@cache
def extra_buffers_work() -> bool:
    """Whether llama.cpp, as it is installed, may load weights into its extra buffer types on this machine."""
    try:
        has_tiles = "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux: no kernel there lets programs use AMX so
        return True
    return not has_tiles or not any(is_broken(path.read_bytes()) for path in _libraries())


def is_broken(library: bytes) -> bool:
    """Whether a shared library's kernels for AMX were compiled with the wrong intrinsic.

    Args:
        library: the whole file.
    """
    if KERNEL not in library or MARK in library:
        return False
    return any(
        int(release) < MENDED.get(int(series), 0 if int(series) > max(MENDED) else 100)
        for series, release in COMPILER.findall(library)
    )


def _libraries() -> list[Path]:
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return []
    return [path for path in Path(spec.origin).parent.glob("lib/libggml-cpu*.so*") if path.is_file()]
