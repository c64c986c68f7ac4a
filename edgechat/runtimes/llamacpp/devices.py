"""What llama.cpp was built with, and which devices it finds."""

import ctypes
from enum import IntEnum

import msgspec

from edgechat.runtimes.llamacpp import abi, logs

NOT_GPU = ("CPU", "BLAS", "RPC")


class DeviceKind(IntEnum):
    """As ggml-backend.h numbers them."""

    CPU = 0
    GPU = 1
    IGPU = 2
    """A GPU that shares the main memory."""
    ACCELERATOR = 3
    """Something that helps the CPU, such as BLAS."""
    META = 4


class Device(msgspec.Struct, frozen=True):
    """A device that llama.cpp can use."""

    name: str
    """Such as "CUDA0"."""
    description: str
    """Such as "NVIDIA H200"."""
    kind: DeviceKind
    memory_free: int
    """Bytes; 0 where the device doesn't tell."""
    memory_total: int

    @property
    def label(self) -> str:
        """For people: "CUDA0 (NVIDIA H200)"."""
        return f"{self.name} ({self.description})" if self.description != self.name else self.name


def devices() -> tuple[Device, ...]:
    """Every device that is there, in llama.cpp's order."""
    logs.capture()
    count = abi.function("ggml_backend_dev_count", ctypes.c_size_t)
    get = abi.function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return tuple(_device(get(index)) for index in range(count()))


def gpus() -> tuple[Device, ...]:
    """The devices that llama.cpp offloads to: discrete GPUs, else integrated ones."""
    found = devices()
    return tuple(device for device in found if device.kind == DeviceKind.GPU) or tuple(
        device for device in found if device.kind == DeviceKind.IGPU
    )


def backends() -> tuple[str, ...]:
    """Names of what is built in, whether or not there is a device for it: "CUDA", "Metal", "CPU"."""
    logs.capture()
    count = abi.function("ggml_backend_reg_count", ctypes.c_size_t)
    get = abi.function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = abi.function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    return tuple(_text(name(get(index))) for index in range(count()))


def gpu_backends() -> tuple[str, ...]:
    """Those of `backends` that need a GPU."""
    return tuple(name for name in backends() if name not in NOT_GPU)


def _device(pointer: int) -> Device:
    name = abi.function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = abi.function("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = abi.function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    size_p = ctypes.POINTER(ctypes.c_size_t)
    memory = abi.function("ggml_backend_dev_memory", None, ctypes.c_void_p, size_p, size_p)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=_text(name(pointer)),
        description=_text(description(pointer)),
        kind=DeviceKind(kind(pointer)),
        memory_free=free.value,
        memory_total=total.value,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace").strip()
