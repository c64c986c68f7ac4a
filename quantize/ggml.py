"""llama.cpp's own quantizers on numpy arrays, through ctypes.

For a process of its own only (quantize/measure.py): what they don't like ends in `abort()`.

Format: `ggml_type_traits` and `ggml_quantize_chunk` in ggml.h.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from models.ggml_types import BLOCKS, GGMLType
from quantize.errors import NativeFailure

Floats = npt.NDArray[np.float32]


class _Traits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


class Ggml:
    """The library that llama-cpp-python brings. Its functions release Python's lock."""

    def __init__(self) -> None:
        """
        Raises:
            NativeFailure: it is another version, whose types are laid out otherwise.
        """
        from llama_cpp import _ctypes_extensions, _ggml

        library: Any = _ctypes_extensions.load_shared_library("ggml-base", _ggml.libggml_base_path)
        self._quantize = library.ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        self._quantize.argtypes = (
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
            ctypes.c_void_p,
        )  # fmt: skip
        self._traits = library.ggml_get_type_traits
        self._traits.restype = ctypes.POINTER(_Traits)
        self._traits.argtypes = (ctypes.c_int,)
        for kind in (GGMLType.Q4_0, GGMLType.Q6_K):
            traits = self._traits(kind).contents
            if (traits.blck_size, traits.type_size) != BLOCKS[kind]:
                raise NativeFailure("llama.cpp's types are laid out otherwise: it is another version")

    def rounded(self, rows: Floats, kind: GGMLType, weights: Floats | None) -> Floats:
        """What is left of rows that go through a type and back.

        Args:
            rows: float32 [n, columns], whose columns fill the type's blocks.
            kind: any type that a file can be quantized to.
            weights: of the columns, float32 [columns], all positive; None: none.
        """
        if kind is GGMLType.F32:
            return rows
        rows = np.ascontiguousarray(rows, np.float32)
        n, columns = rows.shape
        block = BLOCKS[kind]
        if columns % block.elements:
            raise ValueError(f"rows of {columns} don't fill blocks of {block.elements}")
        data = np.empty((n, columns // block.elements * block.n_bytes), np.uint8)
        given = None if weights is None else np.ascontiguousarray(weights, np.float32)
        self._quantize(
            kind,
            rows.ctypes.data,
            data.ctypes.data,
            0,
            n,
            columns,
            None if given is None else given.ctypes.data,
        )
        result = np.empty_like(rows)
        self._traits(kind).contents.to_float(data.ctypes.data, result.ctypes.data, rows.size)
        return result
