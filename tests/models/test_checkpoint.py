"""Reading checkpoints: what is there, and what is wrong with it."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoint import open_checkpoint
from models.errors import BrokenModelFile, UnsupportedModel
from models.ggml_types import GGMLType
from tests.oracles.raw_checkpoint import safetensors, weights


def test_rows_of_every_type(tmp_path: Path) -> None:
    """float32, float16 and bfloat16, whole and in parts."""
    values = np.arange(24, dtype=np.float32).reshape(6, 4) / 8
    bfloat16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    tensors = {
        "a": values,
        "b": values.astype(np.float16),
        "c": bfloat16,
        "d": values[0],
        "e": values.reshape(2, 3, 4),
    }
    (tmp_path / "model.safetensors").write_bytes(safetensors(tensors))
    with open_checkpoint(tmp_path) as checkpoint:
        for name in "abc":
            assert np.array_equal(checkpoint.rows(name), values)
            assert np.array_equal(checkpoint.rows(name, 2, 5), values[2:5])
            assert checkpoint.rows(name, 3, 3).shape == (0, 4)
        assert np.array_equal(checkpoint.stored_rows("c", 1, 2), bfloat16[1:2])
        assert checkpoint.rows("d").shape == (1, 4)
        assert np.array_equal(checkpoint.rows("e", 4, 6), values[4:6])
        assert [checkpoint.tensors[name].type for name in "abc"] == [
            GGMLType.F32,
            GGMLType.F16,
            GGMLType.BF16,
        ]
        with pytest.raises(ValueError, match="rows 5 to 7 of a, which has 6"):
            checkpoint.rows("a", 5, 7)


@pytest.mark.oracle
def test_safetensors_library_agrees(tmp_path: Path) -> None:
    """Files that the library wrote are read as it reads them."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    tensors = {
        f"t{i}": torch.randn(5, 7 + i).to(kind)
        for i, kind in enumerate((torch.float32, torch.float16, torch.bfloat16))
    }
    save_file(tensors, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert np.array_equal(checkpoint.rows(name), tensor.float().numpy())


def test_a_gguf_file_is_dequantized(starter_gguf: Path) -> None:
    """Row by row, as the gguf package dequantizes it whole."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    theirs = {tensor.name: tensor for tensor in GGUFReader(starter_gguf).tensors}
    with open_checkpoint(starter_gguf) as checkpoint:
        assert checkpoint.tensors.keys() == theirs.keys()
        for name in (
            "blk.3.ffn_down.weight",
            "blk.0.attn_k.weight",
            "output_norm.weight",
            "token_embd.weight",
        ):
            whole = np.asarray(dequantize(theirs[name].data, theirs[name].tensor_type), np.float32)
            assert checkpoint.tensors[name].shape == whole.shape
            if whole.ndim == 1:
                assert np.array_equal(checkpoint.rows(name)[0], whole)
            else:
                assert np.array_equal(checkpoint.rows(name, 7, 30), whole[7:30])


def shards(folder: Path) -> None:
    """A checkpoint in two files."""
    items = list(weights().items())
    half = len(items) // 2
    files = {"model-1.safetensors": dict(items[:half]), "model-2.safetensors": dict(items[half:])}
    for file, tensors in files.items():
        (folder / file).write_bytes(safetensors(tensors))
    index = {"weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards(tmp_path: Path) -> None:
    """Every tensor is found in its file."""
    shards(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        for name, tensor in weights().items():
            assert np.array_equal(checkpoint.rows(name).reshape(tensor.shape), tensor)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_names_of_old_quantizers(tmp_path: Path, *, sharded: bool) -> None:
    """AutoGPTQ once called its weights after bits and groups: the only ones of a folder are the model's."""
    name = "gptq_model-4bit-64g.safetensors"
    if sharded:
        shards(tmp_path)
        (tmp_path / "model.safetensors.index.json").rename(tmp_path / f"{name}.index.json")
    else:
        (tmp_path / name).write_bytes(safetensors(weights()))
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors({}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors.keys() == weights().keys()


@pytest.mark.parametrize("names", [["model-00002-of-00012.safetensors"], ["a.safetensors", "b.safetensors"]])
def test_weights_of_which_nobody_knows(tmp_path: Path, names: list[str]) -> None:
    """One shard alone is no model, and of two files nobody knows which is."""
    for name in names:
        (tmp_path / name).write_bytes(safetensors(weights()))
    with pytest.raises(FileNotFoundError, match=r"has no weights \(neither model\.safetensors nor"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """With how many there should be."""
    shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 shards are missing: model-2\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../model-1.safetensors", "/etc/passwd", "a\\b", 3])
def test_an_index_can_not_lead_out_of_its_folder(tmp_path: Path, name: Any) -> None:
    """Names with folders in them are refused."""
    shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["x"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(BrokenModelFile, match="which is not a file in this folder"):
        open_checkpoint(tmp_path)


def test_an_index_that_promises_too_much(tmp_path: Path) -> None:
    """A tensor that its shard doesn't hold."""
    shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-1.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(BrokenModelFile, match="promises ghost"):
        open_checkpoint(tmp_path)


def entry(**changes: Any) -> dict[str, Any]:
    """The header's entry of four float32 numbers."""
    return {"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty: download it again"),
    "short": (b"\x01\0\0", "is cut off after 3 bytes"),
    "huge header": (struct.pack("<Q", 2**60) + b"{}", "its header would have"),
    "header past the end": (struct.pack("<Q", 100) + b"{}", r"is cut off: .*\(its header has 100 bytes"),
    "no JSON": (struct.pack("<Q", 4) + b"\xff\xfe{{", "its header is no JSON"),
    "no object": (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
    "deep": (struct.pack("<Q", 200_000) + b"[" * 200_000, "its header is no JSON"),
    "entry of another kind": (safetensors({}, t=1), "its entry for 't' makes no sense"),
    "negative offset": (safetensors({}, **entry(data_offsets=[-16, 0])), "its entry for 't' makes no sense"),
    "one offset": (safetensors({}, **entry(data_offsets=[0])), "its entry for 't' makes no sense"),
    "float shape": (safetensors({}, **entry(shape=[4.0])), "its entry for 't' makes no sense"),
    "unknown type": (safetensors({}, **entry(dtype="F4")), "t is of the unknown type 'F4'"),
    "wrong size": (safetensors({}, **entry(shape=[5])) + bytes(16), r"t is F32 \[5\], but has 16 bytes"),
    "overflow": (safetensors({}, **entry(shape=[2**61, 2**61])), "but has 16 bytes"),
    "truncated": (
        safetensors({}, **entry()) + bytes(15),
        r"is cut off: .*, and has 119\)",
    ),
    "too long": (safetensors({}, **entry()) + bytes(17), "1 bytes follow the last tensor"),
    "hole": (
        safetensors({}, **entry(data_offsets=[4, 20])) + bytes(20),
        "t is not behind the one before",
    ),
    "overlap": (
        safetensors({}, **entry(), u={"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}) + bytes(24),
        "u is not behind the one before",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_found_in_the_header(tmp_path: Path, case: str) -> None:
    """Each with its own sentence; nothing is allocated on a stranger's word."""
    raw, message = DAMAGE[case]
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BrokenModelFile, match=message):
        open_checkpoint(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """Is an error, not a bus error."""
    (tmp_path / "model.safetensors").write_bytes(safetensors({"t": np.zeros((100, 100), np.float32)}))
    with open_checkpoint(tmp_path) as checkpoint:
        with (tmp_path / "model.safetensors").open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(BrokenModelFile, match=r"is cut off: .*it ends within t"):
            checkpoint.rows("t")


def test_pickles_are_never_read(tmp_path: Path) -> None:
    """They could run any code."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=r"pytorch_model\.bin, a form that can run any code"):
        open_checkpoint(tmp_path)


def test_what_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    """An empty folder, nothing at all, another file, the weights alone."""
    with pytest.raises(FileNotFoundError, match=r"has no weights \(neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing at"):
        open_checkpoint(tmp_path / "x")
    (tmp_path / "x.txt").write_text("hello, world")
    with pytest.raises(BrokenModelFile, match="is a text, not a model: give a GGUF file"):
        open_checkpoint(tmp_path / "x.txt")
    (tmp_path / "model.safetensors").write_bytes(safetensors({}))
    with pytest.raises(UnsupportedModel, match="is one file of a checkpoint: give the folder"):
        open_checkpoint(tmp_path / "model.safetensors")
