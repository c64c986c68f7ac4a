"""The receipt inside a GGUF file: one text in the metadata, for other readers too; nothing else is moved."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from models.gguf import read_header
from models.receipt import receipt_in
from quantize import gguf_receipt
from quantize.formats.gguf import header_bytes
from quantize.pipeline import Request, run
from quantize.plan import target_of
from tests.oracles.raw_checkpoint import write


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return write(tmp_path_factory.mktemp("receipt") / "model")


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0", "q4_k_m"])
def test_every_file_has_one(source: Path, tmp_path: Path, kind: str) -> None:
    """Whether we write the file or llama.cpp does. The gguf package reads it as one JSON text."""
    result = run(Request(source, target_of(kind), tmp_path / "out.gguf"))
    reader = GGUFReader(result.path)
    names = [name for name in reader.fields if name.startswith("edgechat")]
    assert names == ["edgechat.receipt"]
    record = json.loads(reader.fields["edgechat.receipt"].contents())
    assert record == receipt_in(read_header(result.path))
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update(f"{name}\0{hashlib.sha256((source / name).read_bytes()).hexdigest()}\n".encode())
    assert record["source"] == {"name": "model", "sha256": digest.hexdigest()}
    assert record["recipe"] == {"format": "gguf", "type": kind.upper(), "importance_matrix": False}
    assert record["calibration"] is None
    assert record["architecture"] == "llama"
    assert record["bytes"] == sum(tensor.n_bytes for tensor in reader.tensors)
    assert record["parameters"] == result.n_parameters
    assert record["bits_per_weight"] == pytest.approx(result.bits_per_weight, abs=1e-4)
    assert record["versions"]["edgechat"]
    assert record["peak_memory"] > 10**7


@pytest.mark.parametrize("kind", ["f32", "q5_0"])
def test_a_receipt_of_the_source_is_replaced(source: Path, tmp_path: Path, kind: str) -> None:
    """It is of another file. The same weights come out, whatever the header holds."""
    first = run(Request(source, target_of("f32"), tmp_path / "first.gguf")).path
    second = run(Request(first, target_of(kind), tmp_path / "second.gguf")).path
    record = receipt_in(read_header(second))
    assert record is not None
    assert record["source"] == {
        "name": "first.gguf",
        "sha256": hashlib.sha256(first.read_bytes()).hexdigest(),
    }
    assert [name for name in read_header(second).metadata if name.startswith("edgechat")] == [
        "edgechat.receipt"
    ]
    if kind == "f32":
        ours, theirs = (GGUFReader(path).tensors for path in (first, second))
        for a, b in zip(ours, theirs, strict=True):
            assert a.name == b.name
            np.testing.assert_array_equal(a.data, b.data)


def test_too_long_a_receipt_loses_its_end(tmp_path: Path) -> None:
    """And not what begins it; the header stays as long as it was."""
    path = tmp_path / "x.gguf"
    path.write_bytes(header_bytes({gguf_receipt.KEY: gguf_receipt.reserved()}, []))
    size = path.stat().st_size
    gguf_receipt.put(path, {"first": "a", "second": 'ä"' * gguf_receipt.ROOM})
    assert path.stat().st_size == size
    assert receipt_in(read_header(path)) == {"first": "a"}
    gguf_receipt.put(path, {"first": "ä", "second": 2})
    assert receipt_in(read_header(path)) == {"first": "ä", "second": 2}


def test_files_without_one(tmp_path: Path) -> None:
    """Of others, or damaged."""
    path = tmp_path / "x.gguf"
    path.write_bytes(header_bytes({}, []))
    assert receipt_in(read_header(path)) is None
    with pytest.raises(ValueError, match="has no room for a receipt"):
        gguf_receipt.put(path, {})
    path.write_bytes(header_bytes({gguf_receipt.KEY: gguf_receipt.reserved()}, []))
    assert receipt_in(read_header(path)) is None
