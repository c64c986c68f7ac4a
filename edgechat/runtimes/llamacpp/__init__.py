"""The runtime for GGUF files: llama.cpp through llama-cpp-python's low-level API.

All that knows ctypes is in this folder.
"""

from edgechat.runtimes.llamacpp.load import LoadCancelled
from edgechat.runtimes.llamacpp.runtime import LlamaCppRuntime

__all__ = ["LlamaCppRuntime", "LoadCancelled"]
