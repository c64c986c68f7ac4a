"""Importance matrices as files: the gguf package reads ours, we read what it and llama.cpp write, and what is
damaged or of another model is refused."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from models.errors import BrokenModelFile, UnsupportedModel
from quantize.errors import BadRequest
from quantize.imatrix import Entry, ImportanceMatrix
from tests.oracles.raw_checkpoint import write as write_checkpoint

PLAIN, STACK = "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"


def matrix() -> ImportanceMatrix:
    """Of a model of two tensors; the second expert of three saw nothing."""
    plain = Entry(np.array([[1, 4, 9, 0]], np.float32), np.array([2], np.float32))
    stack = Entry(
        np.array([[8, 4], [0, 0], [3, 6]], np.float32),
        np.array([4, 0, 3], np.float32),
    )
    return ImportanceMatrix({STACK: stack, PLAIN: plain}, ("some text",), 5, 64)


def written(path: Path, tensors: dict[str, np.ndarray], kind: str = "imatrix") -> Path:
    """A GGUF file by the gguf package."""
    writer = GGUFWriter(path, "none")
    writer.add_string("general.type", kind)
    writer.add_array("imatrix.datasets", ["a.txt", "b.txt"])
    writer.add_uint32("imatrix.chunk_count", 7)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_mean_squares() -> None:
    """Sums over counts; an expert that saw nothing counts all columns alike."""
    made = matrix()
    np.testing.assert_array_equal(made.weights(PLAIN), np.array([0.5, 2, 4.5, 0], np.float32))
    np.testing.assert_array_equal(made.weights(STACK), np.array([[2, 1], [1, 1], [1, 2]], np.float32))
    assert made.weights(PLAIN).dtype == np.float32
    assert made.weights("output.weight") is None


def test_the_gguf_package_reads_ours(tmp_path: Path) -> None:
    """Names, order, shapes, numbers and keys are those of llama.cpp's tool."""
    matrix().write(tmp_path / "imatrix.gguf")
    reader = GGUFReader(tmp_path / "imatrix.gguf")
    assert [(tensor.name, tensor.shape.tolist()) for tensor in reader.tensors] == [
        (f"{PLAIN}.in_sum2", [4, 1]),
        (f"{PLAIN}.counts", [1, 1]),
        (f"{STACK}.in_sum2", [2, 3]),
        (f"{STACK}.counts", [1, 3]),
    ]
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F32"}
    assert [tensor.data.reshape(-1).tolist() for tensor in reader.tensors] == [
        [1, 4, 9, 0],
        [2],
        [8, 4, 0, 0, 3, 6],
        [4, 0, 3],
    ]
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["some text"]
    assert reader.fields["imatrix.chunk_count"].contents() == 5
    assert reader.fields["imatrix.chunk_size"].contents() == 64
    assert [path.name for path in tmp_path.iterdir()] == ["imatrix.gguf"]


def test_we_read_what_the_gguf_package_writes(tmp_path: Path) -> None:
    """And what we wrote ourselves, to the bit."""
    path = written(
        tmp_path / "theirs.gguf",
        {
            f"{STACK}.counts": np.array([[3], [1]], np.float32),
            f"{STACK}.in_sum2": np.array([[3, 6, 9], [1, 2, 4]], np.float32),
        },
    )
    read = ImportanceMatrix.read(path)
    assert (read.datasets, read.chunk_count, read.chunk_size) == (("a.txt", "b.txt"), 7, 512)
    np.testing.assert_array_equal(read.weights(STACK), [[1, 2, 3], [1, 2, 4]])
    read.write(tmp_path / "ours.gguf")
    again = ImportanceMatrix.read(tmp_path / "ours.gguf")
    assert (again.datasets, again.chunk_count, again.chunk_size) == (("a.txt", "b.txt"), 7, 512)
    np.testing.assert_array_equal(again.entries[STACK].sums, read.entries[STACK].sums)
    np.testing.assert_array_equal(again.entries[STACK].counts, [3, 1])


def test_the_older_format(tmp_path: Path) -> None:
    """imatrix.dat: mean squares times calls, then the calls and the text's name, which may be absent."""
    name = b"blk.3.ffn_down.weight"
    raw = (
        struct.pack("<i", 1) + struct.pack("<i", len(name)) + name + struct.pack("<ii4f", 5, 4, 5, 10, 0, 2.5)
    )
    path = tmp_path / "imatrix.dat"
    path.write_bytes(raw)
    read = ImportanceMatrix.read(path)
    np.testing.assert_array_equal(read.weights(name.decode()), np.array([1, 2, 0, 0.5], np.float32))
    assert (read.datasets, read.chunk_count) == ((), 0)
    path.write_bytes(raw + struct.pack("<ii", 9, 8) + b"text.txt")
    assert (ImportanceMatrix.read(path).datasets, ImportanceMatrix.read(path).chunk_count) == (
        ("text.txt",),
        9,
    )
    for length in range(4, len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(BrokenModelFile, match=r"imatrix\.dat is cut off or no importance matrix"):
            ImportanceMatrix.read(path)


def test_a_stack_of_experts_in_one_row(tmp_path: Path) -> None:
    """As the older format has it: taken apart by the model's shapes."""
    flat = Entry(np.arange(6, dtype=np.float32).reshape(1, 6), np.array([2], np.float32))
    fitted = ImportanceMatrix({STACK: flat}).fitted({STACK: (3, 8, 2)})
    np.testing.assert_array_equal(fitted.weights(STACK), [[0, 0.5], [1, 1.5], [2, 2.5]])


@pytest.mark.parametrize("cut", [3, 40, 200, 400, -1])
def test_a_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    """Wherever it is: in the magic, a key, a tensor's record, its data."""
    path = tmp_path / "imatrix.gguf"
    matrix().write(path)
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:cut])
    with pytest.raises(
        BrokenModelFile, match=r"cut off|no importance matrix|more than the file has room for"
    ):
        ImportanceMatrix.read(path)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a.in_sum2": np.ones((1, 4), np.float32)}, r"lacks a\.counts"),
        ({"a.counts": np.ones((1, 1), np.float32)}, r"lacks a\.in_sum2"),
        (
            {"a.in_sum2": np.array([[1, np.nan]], np.float32), "a.counts": np.ones((1, 1), np.float32)},
            "the sums of a hold NaN or infinity",
        ),
        (
            {"a.in_sum2": np.array([[1, np.inf]], np.float32), "a.counts": np.ones((1, 1), np.float32)},
            "the sums of a hold NaN or infinity",
        ),
        (
            {"a.in_sum2": np.array([[1, 2]], np.float32), "a.counts": np.array([[-1]], np.float32)},
            "the counts of a hold a negative number",
        ),
        (
            {"a.in_sum2": np.ones((1, 4), np.float32), "a.counts": np.ones((3, 1), np.float32)},
            "a has 4 sums for 3 experts",
        ),
        (
            {"a.in_sum2": np.ones((1, 4), np.float16), "a.counts": np.ones((1, 1), np.float32)},
            r"a\.in_sum2 is F16, not F32",
        ),
        ({"a.weight": np.ones((1, 4), np.float32)}, "without any tensor"),
    ],
)
def test_what_can_be_wrong_inside(tmp_path: Path, tensors: dict[str, np.ndarray], said: str) -> None:
    """With the file and the tensor."""
    path = written(tmp_path / "broken.gguf", tensors)
    with pytest.raises(BrokenModelFile, match=rf"broken\.gguf.*{said}"):
        ImportanceMatrix.read(path)


def test_what_is_something_else(tmp_path: Path) -> None:
    """Another GGUF file, a text, nothing, a folder."""
    path = written(tmp_path / "model.gguf", {"a.weight": np.ones((1, 4), np.float32)}, kind="model")
    with pytest.raises(UnsupportedModel, match="is a GGUF file of type 'model', not an importance matrix"):
        ImportanceMatrix.read(path)
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a file that was no importance matrix.")
    with pytest.raises(BrokenModelFile, match="no importance matrix"):
        ImportanceMatrix.read(text)
    with pytest.raises(FileNotFoundError, match="no file at"):
        ImportanceMatrix.read(tmp_path / "nowhere.gguf")
    folder = write_checkpoint(tmp_path / "folder")
    with pytest.raises(BrokenModelFile, match="is no regular file"):
        ImportanceMatrix.read(folder)


def test_of_another_model() -> None:
    """The first tensor that differs is named: one that isn't there, of another width, a layer without any."""
    made = replace(matrix(), path=Path("x.gguf"))
    shapes: dict[str, tuple[int, ...]] = {PLAIN: (8, 4), STACK: (3, 8, 2), "token_embd.weight": (9, 4)}
    assert set(made.fitted(shapes).entries) == {PLAIN, STACK}
    with pytest.raises(
        BadRequest, match=rf"x\.gguf is of another model: it has {STACK}, which this model has"
    ):
        made.fitted({PLAIN: (8, 4)})
    with pytest.raises(BadRequest, match=rf"it has 4 numbers for {PLAIN}, which has 8 here"):
        made.fitted({**shapes, PLAIN: (8, 8)})
    with pytest.raises(BadRequest, match=rf"it has 6 numbers for {STACK}, which has 4 x 2 here"):
        made.fitted({**shapes, STACK: (4, 8, 2)})
    with pytest.raises(BadRequest, match=r"it has nothing of blk\.1\.attn_q\.weight"):
        made.fitted({**shapes, "blk.1.attn_q.weight": (8, 4)})
