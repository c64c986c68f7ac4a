"""llama.cpp's C interface as llama-cpp-python binds it, checked before anything of it is called.

The bindings describe C structs by hand, and llama.cpp moves their fields from one release to the next. A
struct of another layout is a segmentation fault in the middle of an answer; here it is one sentence.
"""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from functools import cache
from types import ModuleType
from typing import Any

from edgechat.errors import UnsupportedError

WANTED_BINDINGS = "0.3.36"
WANTED_LIBRARY = "0.5.0-dev"

# sizeof() of each struct that crosses the border, on every 64-bit system.
SIZES = {
    "llama_model_params": 80,
    "llama_context_params": 160,
    "llama_model_quantize_params": 64,
    "llama_batch": 56,
    "llama_model_kv_override": 264,
    "llama_model_imatrix_data": 24,
    "llama_model_tensor_override": 16,
}

# Defaults that llama.cpp itself fills in: a field that has moved shows as a value in the wrong place.
MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
    "no_alloc": False,
    "load_mtp": False,
}
CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "flash_attn_type": -1,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}

FUNCTIONS = (
    "llama_backend_init",
    "llama_batch_get_one",
    "llama_context_default_params",
    "llama_decode",
    "llama_free",
    "llama_ftype_name",
    "llama_get_logits",
    "llama_get_memory",
    "llama_init_from_model",
    "llama_log_set",
    "llama_memory_can_shift",
    "llama_memory_clear",
    "llama_memory_seq_add",
    "llama_memory_seq_cp",
    "llama_memory_seq_pos_max",
    "llama_memory_seq_pos_min",
    "llama_memory_seq_rm",
    "llama_model_chat_template",
    "llama_model_default_params",
    "llama_model_free",
    "llama_model_ftype",
    "llama_model_get_vocab",
    "llama_model_has_decoder",
    "llama_model_has_encoder",
    "llama_model_is_diffusion",
    "llama_model_is_hybrid",
    "llama_model_is_recurrent",
    "llama_model_load_from_file",
    "llama_model_meta_val_str",
    "llama_model_n_ctx_train",
    "llama_model_n_embd",
    "llama_model_n_head",
    "llama_model_n_head_kv",
    "llama_model_n_layer",
    "llama_model_n_params",
    "llama_model_n_swa",
    "llama_model_size",
    "llama_n_batch",
    "llama_n_ctx",
    "llama_print_system_info",
    "llama_set_n_threads",
    "llama_state_seq_get_data",
    "llama_state_seq_get_size",
    "llama_state_seq_set_data",
    "llama_synchronize",
    "llama_token_to_piece",
    "llama_tokenize",
    "llama_version",
    "llama_vocab_bos",
    "llama_vocab_eos",
    "llama_vocab_eot",
    "llama_vocab_fim_pad",
    "llama_vocab_fim_rep",
    "llama_vocab_fim_sep",
    "llama_vocab_get_add_bos",
    "llama_vocab_get_attr",
    "llama_vocab_is_control",
    "llama_vocab_is_eog",
    "llama_vocab_n_tokens",
)

REMEDY = f'pip install "llama-cpp-python=={WANTED_BINDINGS}"'


@cache
def llama() -> Any:
    """The bindings (the module `llama_cpp.llama_cpp`), checked.

    Before anything but `function` is called of them, `logs.capture` must start llama.cpp.

    Raises:
        UnsupportedError: they are not installed, don't load here, or are of another version.
    """
    # A fatal error in llama.cpp would start a debugger to print a backtrace; the process just ends instead.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    found = installed_version()
    if found is None:
        raise UnsupportedError(f"llama-cpp-python is not installed: {REMEDY}")
    try:
        bindings = _import_bindings()
    except Exception as error:  # a library that doesn't load raises whatever the bindings saw fit
        raise UnsupportedError(f"llama-cpp-python {found} does not load here: {error}") from error
    check(bindings, found)
    return bindings


def check(bindings: Any, found: str) -> None:
    """Refuse bindings, or a library under them, whose layout is not the one that this code was written for.

    Args:
        bindings: the module `llama_cpp.llama_cpp`, or a stand-in.
        found: its version.

    Raises:
        UnsupportedError: naming the version found, the one wanted and the first difference.
    """
    difference = _difference(bindings)
    if difference:
        raise UnsupportedError(
            f"llama-cpp-python {found} is not the version that edgechat can use ({difference}): {REMEDY}"
        )


def function(name: str, result: Any, *arguments: Any) -> Any:
    """A C function of llama.cpp or ggml with a signature of our own; the bindings' own stays as it is.

    Args:
        name: the symbol.
        result: ctypes type of the result, None for void.
        arguments: ctypes types of the arguments.

    Raises:
        UnsupportedError: there is no such symbol.
    """
    for library in _libraries():
        try:
            return ctypes.CFUNCTYPE(result, *arguments)((name, library))
        except AttributeError:
            continue
    raise UnsupportedError(f"llama.cpp has no function {name}: {REMEDY}")


def installed_version() -> str | None:
    """The version of llama-cpp-python that is installed, or None."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def _difference(bindings: Any) -> str:
    """The first thing that is not as it should be, or ""."""
    for name in FUNCTIONS:
        if not hasattr(bindings, name):
            return f"no function {name}"
    for name, size in SIZES.items():
        struct = getattr(bindings, name, None)
        if struct is None:
            return f"no struct {name}"
        if ctypes.sizeof(struct) != size:
            return f"{name} has {ctypes.sizeof(struct)} bytes, not {size}"
    library = bindings.llama_version().decode(errors="replace")
    if library != WANTED_LIBRARY:
        return f"its llama.cpp is {library}, not {WANTED_LIBRARY}"
    for params, defaults in (
        (bindings.llama_model_default_params(), MODEL_DEFAULTS),
        (bindings.llama_context_default_params(), CONTEXT_DEFAULTS),
    ):
        for field, value in defaults.items():
            if getattr(params, field, None) != value:
                return f"{type(params).__name__}.{field} is not where it was"
    return ""


def _import_bindings() -> Any:
    """Import the C bindings alone.

    The package's own __init__ also imports its high-level class with chat formats, caches and more: a
    quarter of a second of every start. An empty stand-in for the package keeps it from running; a later
    `import llama_cpp` finds the same bindings.
    """
    if "llama_cpp" in sys.modules:
        return importlib.import_module("llama_cpp.llama_cpp")
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("its files are missing")
    package = ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    finally:
        del sys.modules["llama_cpp"]


@cache
def _libraries() -> tuple[Any, ...]:
    """libllama, then ggml's two libraries where they can be opened on their own (Windows needs that)."""
    bindings = llama()
    found = [bindings._lib]
    for name in ("ggml", "ggml-base"):
        try:
            found.append(bindings.load_shared_library(name, bindings._base_path))
        except (OSError, RuntimeError):  # FileNotFoundError where they are one library
            continue
    return tuple(found)
