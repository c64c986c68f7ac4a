"""The runtime for GGUF files: llama.cpp through llama-cpp-python's low-level API.

All that knows ctypes is in this folder. The names below are imported when they are asked for: modules of this
folder also run by themselves (`python -m edgechat.runtimes.llamacpp.backends`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgechat.runtimes.llamacpp.load import LoadCancelled
    from edgechat.runtimes.llamacpp.runtime import LlamaCppRuntime

__all__ = ["LlamaCppRuntime", "LoadCancelled"]


def __getattr__(name: str) -> Any:
    if name == "LlamaCppRuntime":
        from edgechat.runtimes.llamacpp.runtime import LlamaCppRuntime

        return LlamaCppRuntime
    if name == "LoadCancelled":
        from edgechat.runtimes.llamacpp.load import LoadCancelled

        return LoadCancelled
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
