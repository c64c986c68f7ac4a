"""The GGUF writer, read back by the gguf package and by our own reader."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from models.ggml_types import GGMLType
from models.gguf import ValueType, read_header
from quantize.formats.gguf import (
    OutputTensor,
    copied,
    data_bytes,
    encode,
    header_bytes,
    padded,
    write_tensor,
)

METADATA = {
    "general.architecture": "llama",
    "a.whole": 7,
    "a.float": 0.1,
    "a.yes": True,
    "a.text": "Ünïcode ▁ 漢",
    "a.empty": "",
    "a.texts": ["", "one", "漢字"],
    "a.wholes": [-1, 0, 2**31 - 1],
    "a.floats": [0.5, -1e9],
    "a.flags": [True, False, True],
}
TENSORS = [
    OutputTensor("one", (3,), GGMLType.F32),
    OutputTensor("two", (2, 32), GGMLType.Q8_0),
    OutputTensor("three", (2, 3, 4), GGMLType.F16),
]


def written(path: Path) -> list[bytes]:
    """A file of those parts; the data that went in."""
    random = np.random.default_rng(3)
    data = [random.integers(0, 60, tensor.n_bytes, np.uint8).tobytes() for tensor in TENSORS]
    with path.open("wb") as file:
        file.write(header_bytes({key: encode(value) for key, value in METADATA.items()}, TENSORS))
        for tensor, raw in zip(TENSORS, data, strict=True):
            write_tensor(file, tensor, iter((raw[:5], memoryview(raw)[5:])))
    return data


def test_the_gguf_package_reads_what_was_written(tmp_path: Path) -> None:
    """Every kind of value, and the bytes of every tensor in its place."""
    from gguf import GGUFReader

    data = written(tmp_path / "x.gguf")
    reader = GGUFReader(tmp_path / "x.gguf")
    for key, value in METADATA.items():
        seen = reader.fields[key].contents()
        assert seen == (pytest.approx(value) if "float" in key else value), key
    assert [tensor.name for tensor in reader.tensors] == ["one", "two", "three"]
    assert [list(tensor.shape) for tensor in reader.tensors] == [[3], [32, 2], [4, 3, 2]]
    assert [tensor.data.tobytes() for tensor in reader.tensors] == data


def test_sizes_are_known_beforehand(tmp_path: Path) -> None:
    """To the byte."""
    written(tmp_path / "x.gguf")
    header = header_bytes({key: encode(value) for key, value in METADATA.items()}, TENSORS)
    assert len(header) % 32 == 0
    assert (tmp_path / "x.gguf").stat().st_size == len(header) + data_bytes(TENSORS)
    assert [padded(n) for n in (0, 1, 32, 33)] == [0, 32, 32, 64]
    assert [tensor.n_bytes for tensor in TENSORS] == [12, 68, 48]


def test_metadata_is_copied_byte_by_byte(tmp_path: Path) -> None:
    """Except for what is left out."""
    written(tmp_path / "x.gguf")
    copy = copied(read_header(tmp_path / "x.gguf"), without=("a.text",))
    expected = {key: encode(value) for key, value in METADATA.items() if key != "a.text"}
    assert copy == expected
    assert list(copy) == list(expected)


def test_values_take_the_type_that_is_asked_for() -> None:
    """Written out by hand: type, then value."""
    assert encode(1) == b"\x04\0\0\0\x01\0\0\0"
    assert encode(1, ValueType.INT8) == b"\x01\0\0\0\x01"
    assert encode(True) == b"\x07\0\0\0\x01"
    assert encode(1.0) == b"\x06\0\0\0\0\0\x80\x3f"
    assert encode("ab") == b"\x08\0\0\0\x02\0\0\0\0\0\0\0ab"
    assert encode([1]) == b"\x09\0\0\0\x05\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0"


def test_a_tensor_of_the_wrong_length_is_our_own_fault() -> None:
    """And never goes unnoticed."""
    with pytest.raises(ValueError, match="one: 8 bytes were written for 12"):
        write_tensor(BytesIO(), TENSORS[0], iter((b"12345678",)))
