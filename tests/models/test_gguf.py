"""The header parser against the gguf package's reader and writer, and against ggml itself."""

import ctypes
import importlib.util
import os
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from models.errors import BrokenModelFile, UnsupportedModel
from models.ggml_types import BLOCKS, REMOVED_TYPES, GGMLType
from models.gguf import GGUFHeader, LazyArray, ValueType, read_header
from tests.oracles.raw_gguf import ARRAY, F32, I32, STRING, U32, File, Tensor, array, tiny_llama


def test_types_equal_those_of_ggml() -> None:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    (library,) = [
        path
        for path in (Path(spec.origin).parent / "lib").iterdir()
        if path.name.partition(".")[0] in ("libggml-base", "ggml-base")
        and path.suffix in (".so", ".dylib", ".dll")
    ][:1]
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    for kind in GGMLType:
        assert BLOCKS[kind] == (ggml.ggml_blck_size(int(kind)), ggml.ggml_type_size(int(kind))), kind
    for number in REMOVED_TYPES:
        assert ggml.ggml_blck_size(number) == 0
    assert sorted([*GGMLType, *REMOVED_TYPES]) == list(range(43))


def test_types_equal_those_of_the_gguf_package() -> None:
    for kind, block in gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # never in a file; the package still has the size of an older struct
            assert BLOCKS[GGMLType[kind.name]] == block
            assert GGMLType[kind.name] == kind


def test_starter_in_figures(starter_gguf: Path) -> None:
    header = read_header(starter_gguf)
    assert (header.version, header.alignment, header.architecture) == (3, 32, "llama")
    assert (len(header.fields), len(header.tensors)) == (33, 272)
    assert (header.n_header_bytes, header.data_offset, header.file_size) == (1_785_664, 1_785_664, 98_362_432)
    assert header.hyper("block_count") == 30
    assert header.hyper("no_such_thing") is None
    first = header.tensors[0]
    assert (first.name, first.shape, first.type, first.offset, first.n_bytes, first.record_offset) == (
        "token_embd.weight",
        (576, 49152),
        GGMLType.Q8_0,
        0,
        30_081_024,
        1_769_507,
    )
    assert sum(tensor.n_elements for tensor in header.tensors) == 134_515_008
    last = header.tensors[-1]
    assert header.data_offset + last.offset + last.n_bytes == header.file_size


def test_starter_equals_the_readers_view(starter_gguf: Path) -> None:
    _assert_equals_reader(read_header(starter_gguf), starter_gguf)


def test_gemma_equals_the_readers_view(gemma_gguf: Path) -> None:
    header = read_header(gemma_gguf)
    _assert_equals_reader(header, gemma_gguf)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, LazyArray)
    assert (tokens.count, header.data_offset - header.n_header_bytes) == (262_144, 8)


@pytest.mark.parametrize("version", [2, 3])
def test_written_by_the_gguf_package(tmp_path: Path, version: int) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.15625)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "žluťoučký kůň 🐎")
    writer.add_array("texts", ["", "a", "▁b"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [0.5, -0.25])
    writer.add_array("bools", [True, False])
    writer.add_custom_alignment(64)
    writer.add_tensor("a", np.ones((3, 32), np.float32))
    writer.add_tensor("b", np.ones((2, 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if version == 2:  # laid out alike
        raw = bytearray(path.read_bytes())
        raw[4] = 2
        path.write_bytes(raw)

    header = read_header(path)
    values = {
        key: value.read() if isinstance(value, LazyArray) else value for key, value in header.metadata.items()
    }
    assert values == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.15625,
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "žluťoučký kůň 🐎",
        "texts": ["", "a", "▁b"],
        "numbers": [1, -2, 3],
        "reals": [0.5, -0.25],
        "bools": [True, False],
        "general.alignment": 64,
    }
    assert header.version == version
    assert header.alignment == 64
    assert header.data_offset % 64 == 0
    assert [(t.name, t.shape, t.type, t.offset, t.n_bytes) for t in header.tensors] == [
        ("a", (32, 3), GGMLType.F32, 0, 384),
        ("b", (32, 2), GGMLType.Q4_0, 384, 36),
    ]


def test_the_tests_writer_equals_the_gguf_packages(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("n", 7)
    writer.add_float32("x", 0.5)
    writer.add_array("words", ["a", "bc"])
    writer.add_array("whole", [1, 2])
    writer.add_tensor("t", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    file = File().put("general.architecture", STRING, "llama").put("n", U32, 7).put("x", F32, 0.5)
    file.put("words", ARRAY, array(STRING, ["a", "bc"])).put("whole", ARRAY, array(I32, [1, 2]))
    file.tensors.append(Tensor("t", (32, 4)))
    written = path.read_bytes()
    assert file.header().rstrip(b"\0") == written.rstrip(b"\0")


def test_token_lists_stay_in_the_file(starter_gguf: Path) -> None:
    read_header(starter_gguf)
    tracemalloc.start()
    header = read_header(starter_gguf)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20
    merges = header.metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, LazyArray)
    assert (len(merges), merges.type, merges.read()[0]) == (48_900, ValueType.STRING, "Ġ t")


def test_a_hostile_count_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    file = File().put("a", ARRAY, array(STRING, ["a"], 2**24)).put("b", ARRAY, array(U32, [1], 2**24))
    path.write_bytes(file.header() + bytes(1000))
    tracemalloc.start()
    with pytest.raises(BrokenModelFile, match="more than the file has room for"):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_arrays_notice_that_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    file = tiny_llama()
    path.write_bytes(file.header())
    tokens, scores = (read_header(path).metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores"))
    assert isinstance(tokens, LazyArray)
    assert isinstance(scores, LazyArray)
    raw = bytearray(path.read_bytes())
    raw[tokens.offset] += 1
    path.write_bytes(raw)
    with pytest.raises(BrokenModelFile, match="changed while it was being read"):
        tokens.read()
    path.write_bytes(raw[:200])
    with pytest.raises(BrokenModelFile, match="changed while it was being read"):
        scores.read_numbers()
    with pytest.raises(TypeError):
        scores.read_bytes()
    with pytest.raises(TypeError):
        tokens.read_numbers()


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (b"", BrokenModelFile, "model.gguf is empty: download or convert it again$"),
        (b"GG", BrokenModelFile, r"is cut off: .* \(it ends within its first four bytes\)$"),
        (b"PK\x03\x04" + bytes(100), BrokenModelFile, "is a ZIP archive, not a model: give a GGUF file$"),
        (b"GGUF\x00\x00\x00\x03" + bytes(100), UnsupportedModel, "big-endian"),
        (b"GGUF\x01\x00\x00\x00" + bytes(100), UnsupportedModel, r"is too old a GGUF file \(version 1\)"),
        (
            b"GGUF\x04\x00\x00\x00" + bytes(100),
            UnsupportedModel,
            r"is a newer GGUF file \(version 4\) than is known here",
        ),
        (
            b"GGUF\x00\x00\x00\x00" + bytes(100),
            BrokenModelFile,
            r"version 0, which GGUF never had, at byte 4\)$",
        ),
        (
            b"GGUF\x03\x00\x00\x00" + bytes(2),
            BrokenModelFile,
            r"cut off: .*it ends within how many tensors it has, at byte 8",
        ),
    ],
)
def test_beginnings(tmp_path: Path, raw: bytes, error: type[Exception], message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(error, match=message):
        read_header(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file at .*gone.gguf: check the name"):
        read_header(tmp_path / "gone.gguf")
    with pytest.raises(BrokenModelFile, match="is no regular file"):
        read_header(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(BrokenModelFile, match="is no regular file"):
            read_header(tmp_path / "pipe.gguf")


def _assert_equals_reader(header: GGUFHeader, path: Path) -> None:
    reader = gguf.GGUFReader(path)
    fields = {key: value for key, value in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(header.fields) == list(fields)
    for key, entry in fields.items():
        value = header.metadata[key]
        expected: Any = entry.contents()
        assert (value.read() if isinstance(value, LazyArray) else value) == expected, key
        assert header.fields[key].type == entry.types[0]
    assert header.data_offset == reader.data_offset
    assert [
        (t.name, t.shape, int(t.type), t.n_bytes, t.n_elements, header.data_offset + t.offset)
        for t in header.tensors
    ] == [
        (t.name, tuple(t.shape.tolist()), int(t.tensor_type), t.n_bytes, t.n_elements, t.data_offset)
        for t in reader.tensors
    ]
