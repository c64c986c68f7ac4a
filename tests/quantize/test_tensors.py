"""Rounding and reordering, against torch and ggml's own code."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from models.ggml_types import GGMLType
from quantize.tensors import interleave, to_bfloat16


def ggml() -> ctypes.CDLL:
    """The library beside the bindings."""
    import importlib.util

    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "lib"
    (library,) = [path for path in folder.glob("libggml-base.*") if path.suffix in {".so", ".dylib", ".dll"}]
    return ctypes.CDLL(str(library))


def samples() -> np.ndarray:
    """Normal numbers, ties of the rounding, tiny and large ones. float32 [64, 96]."""
    random = np.random.default_rng(11)
    values = (random.standard_normal((64, 96)) * 10.0 ** random.uniform(-8, 4, (64, 96))).astype(np.float32)
    values[0, :32] = 0
    ties = np.arange(0x3F80_0000, 0x3F80_0000 + 96 * 0x8000, 0x8000, dtype=np.uint32)
    values[1] = ties.view(np.float32)
    values[2] = -values[1]
    values[3] = np.linspace(-127, 127, 96, dtype=np.float32) * 0.5
    return values


@pytest.mark.oracle
def test_bfloat16_rounds_as_torch_does() -> None:
    """Ties to even."""
    import torch

    values = samples()
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(to_bfloat16(values), expected)


def test_eight_bits_are_those_of_ggml() -> None:
    """The same blocks, byte by byte, as ggml_quantize_chunk makes of the same numbers."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    values = samples()
    values[4] = np.float32(3.3e-5) * np.arange(96, dtype=np.float32)
    library = ggml()
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    out = np.zeros(64 * 96 // 32 * 34, np.uint8)
    n = library.ggml_quantize_chunk(
        ctypes.c_int(GGMLType.Q8_0),
        values.ctypes.data_as(ctypes.c_void_p),
        out.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(64),
        ctypes.c_int64(96),
        None,
    )
    assert n == out.size
    assert np.array_equal(quantize(values, GGMLQuantizationType.Q8_0).reshape(-1), out)


def test_interleaving_written_out_by_hand() -> None:
    """Two heads of four rows: the halves of each become neighbours."""
    rows = np.arange(8, dtype=np.uint16).reshape(8, 1)
    assert interleave(rows, 2).reshape(-1).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert interleave(np.arange(16).reshape(8, 2), 1)[:4].tolist() == [[0, 1], [8, 9], [2, 3], [10, 11]]
