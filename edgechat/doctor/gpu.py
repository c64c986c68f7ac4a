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
    driver: str = ""
    """Its version; "" where it isn't known."""
    trouble: str = ""
    """What the driver complains of."""


def check_gpus(build: Build, gpus: list[Gpu] | None = None) -> Finding:
    """Whether llama.cpp can use the GPUs that are here.

    Args:
        build: what llama.cpp was built with.
        gpus: those of the machine; None looks.
    """
    gpus = find_gpus() if gpus is None else gpus
    data = {"gpus": [{"name": gpu.name, "backend": gpu.backend, "driver": gpu.driver} for gpu in gpus]}
    if not gpus:
        return Finding("GPU", "none found", data=data)
    found = ", ".join(gpu.name + (f" (driver {gpu.driver})" if gpu.driver else "") for gpu in gpus)
    if trouble := next((gpu.trouble for gpu in gpus if gpu.trouble), ""):
        return Finding(
            "GPU",
            found,
            Severity.WARNING,
            f"the NVIDIA driver doesn't answer ({trouble})",
            "restart the machine, or install its driver again",
            data,
        )
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
    if nvidia := _nvidia():
        return nvidia
    if any(RENDER_NODES.glob("renderD*")) and ctypes.util.find_library("vulkan"):
        return [Gpu("a GPU with Vulkan", "Vulkan", "-DGGML_VULKAN=on")]
    return []


def _nvidia() -> list[Gpu]:
    """NVIDIA's, as its tool lists them; where that is missing or fails, as the kernel does."""
    trouble = ""
    if shutil.which("nvidia-smi"):
        try:
            done = subprocess.run(
                ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            trouble = f"nvidia-smi gave no answer within {TIMEOUT_S:.0f} s"
        except OSError:
            pass
        else:
            if done.returncode == 0:
                rows = [line.partition(",") for line in done.stdout.splitlines() if line.strip()]
                return [_cuda(name.strip(), driver.strip()) for name, _, driver in rows]
            trouble = " ".join((done.stdout or done.stderr).split())[:200] or f"code {done.returncode}"
    try:
        return [_cuda(_proc_name(folder), trouble=trouble) for folder in sorted(NVIDIA_PROC.iterdir())]
    except OSError:
        return []


def _cuda(name: str, driver: str = "", trouble: str = "") -> Gpu:
    return Gpu(name, "CUDA", "-DGGML_CUDA=on", driver, trouble)


def _proc_name(folder: Path) -> str:
    try:
        lines = (folder / "information").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line for line in lines if line.startswith("Model:")), "")
    return model.removeprefix("Model:").strip() or "an NVIDIA GPU"
