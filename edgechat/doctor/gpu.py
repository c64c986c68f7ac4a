"""GPUs that the machine has, against those that llama.cpp was built for."""

import ctypes.util
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from edgechat.doctor.findings import Finding, Severity
from edgechat.doctor.llama import REBUILD, Build

NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")
RENDER_NODES = Path("/dev/dri")
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    name: str
    backend: str
    """What llama.cpp must be built with to use it."""
    flags: str
    """For CMake."""


def check_gpus(build: Build, gpus: list[Gpu] | None = None) -> Finding:
    """Whether llama.cpp can use the GPUs that are here.

    Args:
        build: what llama.cpp was built with.
        gpus: those of the machine; None looks.
    """
    gpus = find_gpus() if gpus is None else gpus
    data = {"gpus": [{"name": gpu.name, "backend": gpu.backend} for gpu in gpus]}
    if not gpus:
        return Finding("GPU", "none found", data=data)
    found = ", ".join(gpu.name for gpu in gpus)
    built = {name.casefold() for name in build.backends}
    # Vulkan drives every GPU, if not as fast.
    idle = [gpu for gpu in gpus if not {gpu.backend.casefold(), "vulkan"} & built]
    if not idle or not built:
        return Finding("GPU", found, data=data)
    gpu = idle[0]
    return Finding(
        "GPU",
        found,
        Severity.WARNING,
        f"{gpu.name} is not used: llama.cpp was built without {gpu.backend}",
        f"rebuild it: `{REBUILD.format(flags=gpu.flags)}`",
        data,
    )


def find_gpus() -> list[Gpu]:
    """The GPUs that llama.cpp could use, as far as the system tells."""
    if platform.system() == "Darwin":
        metal = Gpu("Apple GPU", "Metal", "-DGGML_METAL=on")
        return [metal] if platform.machine() == "arm64" else []
    nvidia = [Gpu(name, "CUDA", "-DGGML_CUDA=on") for name in _nvidia_names()]
    if nvidia:
        return nvidia
    if any(RENDER_NODES.glob("renderD*")) and ctypes.util.find_library("vulkan"):
        return [Gpu("a GPU with Vulkan", "Vulkan", "-DGGML_VULKAN=on")]
    return []


def _nvidia_names() -> list[str]:
    if shutil.which("nvidia-smi"):
        try:
            done = subprocess.run(
                ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            pass
        else:
            if done.returncode == 0:
                return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    try:
        return [_proc_name(folder) for folder in sorted(NVIDIA_PROC.iterdir())]
    except OSError:
        return []


def _proc_name(folder: Path) -> str:
    try:
        lines = (folder / "information").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line for line in lines if line.startswith("Model:")), "")
    return model.removeprefix("Model:").strip() or "an NVIDIA GPU"
