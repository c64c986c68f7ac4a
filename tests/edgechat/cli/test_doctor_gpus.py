"""`edgechat doctor` and GPUs: those that are there, and those that llama.cpp can use."""

import dataclasses
from pathlib import Path

import pytest

from edgechat.doctor import Severity, gpu
from edgechat.doctor.gpu import Gpu, check_gpus
from edgechat.doctor.llama import Build

CUDA = Gpu("NVIDIA H200", "CUDA", "-DGGML_CUDA=on")


def test_a_gpu_that_is_not_used() -> None:
    finding = check_gpus(Build(("CPU",)), [CUDA])
    assert (finding.severity, finding.problem) == (
        Severity.WARNING,
        "NVIDIA H200 is not used: llama.cpp was built without CUDA",
    )
    assert finding.remedy == (
        "rebuild it: `CMAKE_ARGS='-DGGML_CUDA=on' pip install --force-reinstall --no-cache-dir "
        "'llama-cpp-python>=0.3.36,<0.3.37'`"
    )


@pytest.mark.parametrize("backends", [("CPU", "CUDA"), ("CPU", "Vulkan"), ()])
def test_a_gpu_that_is_used_or_not_known_to_be_idle(backends: tuple[str, ...]) -> None:
    finding = check_gpus(Build(backends), [CUDA])
    assert (finding.severity, finding.found) == (Severity.OK, "NVIDIA H200")


def test_no_gpu() -> None:
    assert check_gpus(Build(("CPU",)), []).found == "none found"


def test_nvidia_without_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t NVIDIA GeForce RTX 4070\nIRQ: 1\n")
    (tmp_path / "0000:02:00.0").mkdir()
    monkeypatch.setattr(gpu, "NVIDIA_PROC", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert [one.name for one in gpu.find_gpus()] == ["NVIDIA GeForce RTX 4070", "an NVIDIA GPU"]


def test_nvidia_with_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA H200, 580.65.06\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert gpu.find_gpus() == [dataclasses.replace(CUDA, driver="580.65.06")]
    assert check_gpus(Build(("CUDA",))).found == "NVIDIA H200 (driver 580.65.06)"


def test_nvidia_with_a_driver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc" / "0000:01:00.0").mkdir(parents=True)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho Failed to initialize NVML: Driver/library version mismatch\nexit 18\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu, "NVIDIA_PROC", tmp_path / "proc")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    finding = check_gpus(Build(("CUDA",)))
    assert (finding.severity, finding.problem) == (
        Severity.WARNING,
        "the NVIDIA driver doesn't answer (Failed to initialize NVML: Driver/library version mismatch)",
    )


def test_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert [one.backend for one in gpu.find_gpus()] == ["Metal"]
