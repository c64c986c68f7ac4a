"""What `edgechat doctor` asks: how llama.cpp was built, and what it finds here.

Run as `python -m edgechat.runtimes.llamacpp.backends`, it prints a BuildInfo as one JSON object, so that
the process that asks never loads native code. An error is one line on stderr and its exit code.
"""

import sys
from pathlib import Path

import msgspec

from edgechat.errors import EdgechatError
from edgechat.runtimes.llamacpp import abi, logs
from edgechat.runtimes.llamacpp.devices import Device, backends, devices, gpu_backends
from models.amx import extra_buffers_work


class BuildInfo(msgspec.Struct, frozen=True):
    """The llama.cpp that is installed."""

    bindings: str
    """Version of llama-cpp-python."""
    library: str
    """Version of llama.cpp."""
    path: str
    """Folder of its libraries."""
    backends: tuple[str, ...]
    """What is built in: "CPU", "CUDA", "Metal", "Vulkan", ..."""
    features: tuple[str, ...]
    """What its CPU code uses here: "AVX2", "FMA", "OPENMP", "REPACK", ..."""
    gpu_backends: tuple[str, ...]
    """Those of `backends` that need a GPU; where there are some but no GPU among `devices`, say so."""
    devices: tuple[Device, ...]
    extra_buffers: bool
    """Weights may be laid out for this CPU: False where the code for AMX would crash."""


def build_info() -> BuildInfo:
    """How llama.cpp was built and what it finds here.

    Raises:
        UnsupportedError: it is not installed, or of another version.
    """
    logs.capture()
    llama = abi.llama()
    return BuildInfo(
        bindings=abi.installed_version() or "",
        library=llama.llama_version().decode(),
        path=str(Path(llama._base_path)),
        backends=backends(),
        features=features(llama.llama_print_system_info().decode("utf-8", "replace")),
        gpu_backends=gpu_backends(),
        devices=devices(),
        extra_buffers=extra_buffers_work(),
    )


def features(system_info: str) -> tuple[str, ...]:
    """The CPU's part of llama_print_system_info: "CUDA : ARCHS = 890 | CPU : AVX2 = 1 | AVX512 = 0 | "."""
    found = []
    backend = "CPU"
    for part in system_info.split("|"):
        name, colon, rest = part.partition(" : ")
        if colon:
            backend = name.strip()
        key, equals, value = (rest if colon else part).partition("=")
        if backend == "CPU" and equals and value.strip() != "0":
            found.append(key.strip() if value.strip() == "1" else f"{key.strip()}={value.strip()}")
    return tuple(found)


def main() -> int:
    """Print the BuildInfo as JSON."""
    try:
        info = build_info()
    except EdgechatError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.code)
    sys.stdout.write(msgspec.json.encode(info).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
