"""Build llama-cpp-python once for this machine, and print the path of its wheel.

    python packaging/llama_wheel.py PYTHON REQUIREMENT

llama.cpp is compiled for the processor in front of it (-march=native), and with the back ends that
CMAKE_ARGS asks for. pip's own cache knows neither: it would hand a wheel built for AVX-512 to a machine
that has none, or one without CUDA to a person who has just asked for it. So wheels are kept here under a
key made of the processor, the interpreter's platform and CMAKE_ARGS.

A wheel that an index or PIP_FIND_LINKS offers ready-made is taken instead of compiling, as pip prefers it.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEAN = Path(__file__).with_name("llama-cpp.cmake")
MENDED = Path(__file__).with_name("amx-tile-config.h")
"""What `LEAN` has the compiler read first."""


def processor() -> str:
    """What the compiler's -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # macOS, Windows
        return f"{platform.machine()} {platform.processor()}"
    lines = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", text, flags=re.MULTILINE)
    return "\n".join(sorted(set(lines)))


def cmake_args() -> str:
    """The person's own CMAKE_ARGS after ours, so that theirs win."""
    lean = f"-DLLAVA_BUILD=OFF {shlex.quote(f'-DCMAKE_PROJECT_llama.cpp_INCLUDE={LEAN}')}"
    return f"{lean} {os.environ.get('CMAKE_ARGS', '')}".strip()


def cache_folder(requirement: str) -> Path:
    """Where the wheel for this processor and these arguments is kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parts = (
        requirement,
        processor(),
        sys.platform,
        os.environ.get("CMAKE_ARGS", ""),
        *(path.read_text(encoding="utf-8") for path in (LEAN, MENDED)),
        os.environ.get("PIP_EXTRA_INDEX_URL", ""),
    )
    return Path(root, "edgechat", "wheels", hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16])


def main(python: str, requirement: str) -> int:
    """Build the wheel unless it is there, and print its path.

    Returns:
        pip's own exit code; 0 where the wheel is there.
    """
    folder = cache_folder(requirement)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        print("Compiling llama.cpp for this processor; takes a few minutes, once ...", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        environment = {**os.environ, "CMAKE_ARGS": cmake_args(), "CMAKE_BUILD_PARALLEL_LEVEL": jobs}
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir"]
            done = subprocess.run([*command, "--wheel-dir", work, requirement], env=environment, check=False)
            if done.returncode:
                print(
                    "llama.cpp did not compile: it needs a C++ compiler (Debian: apt install build-essential;"
                    " macOS: xcode-select --install), or a prebuilt wheel: see README.md.",
                    file=sys.stderr,
                )
                return done.returncode
            (built,) = Path(work).glob("*.whl")
            shutil.rmtree(folder, ignore_errors=True)
            Path(work, "done").mkdir()
            built.rename(Path(work, "done", built.name))
            Path(work, "done").rename(folder)
        print(f"llama.cpp is ready after {time.monotonic() - began:.0f} s.", file=sys.stderr)
        wheels = sorted(folder.glob("*.whl"))
    print(wheels[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
