"""Folders of quantized checkpoints, named as models."""

import json
from pathlib import Path

import pytest

from edgechat.errors import NotFoundError, UnsupportedError
from edgechat.library.repacked import is_packed, repacked
from edgechat.library.resolve import resolve_to_load
from tests.oracles.raw_checkpoint import config, write


def quantized(folder: Path) -> Path:
    """A folder that says that it is quantized."""
    return write(folder, model=config(quantization_config={"quant_method": "gptq", "bits": 4}))


def test_which_folders_are_quantized_checkpoints(tmp_path: Path) -> None:
    """By config.json; one with a GGUF file besides is not."""
    folder = quantized(tmp_path / "quantized")
    assert is_packed(folder)
    assert not is_packed(write(tmp_path / "plain"))
    assert not is_packed(tmp_path)
    (folder / "x.gguf").touch()
    assert not is_packed(folder)
    (folder / "x.gguf").unlink()
    (folder / "config.json").write_text("{")
    assert not is_packed(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights."""
    from tests.oracles import hf_models
    from tests.oracles.hf_configs import build

    source = tmp_path_factory.mktemp("llama") / "source"
    size = hf_models.save_bpe(source, hf_models.LLAMA3)
    hf_models.save_model(source, build("LlamaConfig", {"vocab_size": size, "intermediate_size": 128}))
    return source


def types_of(path: Path) -> set[str]:
    """Of the matrices whose groups may have an order."""
    from models.verify import verify_gguf

    return {tensor.type.name for tensor in verify_gguf(path).tensors if "ffn_up" in tensor.name}


@pytest.mark.oracle
@pytest.mark.timeout(600)
def test_groups_with_an_order_become_eight_bits(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GGUF has no place for it: it runs all the same, and that is said, once."""
    from quantize.layers import LayerRequest, run
    from quantize.recipe import Order, Recipe

    recipe = Recipe(order=Order.CLASSIC, group_size=32)
    request = LayerRequest(llama, recipe, tmp_path / "made", samples=2, evaluated=False, threads=1)
    folder = run(request).path
    capsys.readouterr()
    path = resolve_to_load(str(folder))
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "made: no type of GGUF file holds its integers as they are: made of 8 bits"
    assert types_of(path) == {"Q8_0"}
    assert resolve_to_load(str(folder)) == path
    assert capsys.readouterr().err == ""


@pytest.mark.oracle
@pytest.mark.timeout(600)
def test_a_result_is_packed_once(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line the first time, nothing the next; again where the checkpoint has changed."""
    from quantize.layers import LayerRequest, run
    from quantize.recipe import Method, Recipe

    recipe = Recipe(method=Method.RTN)
    folder = run(LayerRequest(llama, recipe, tmp_path / "made", evaluated=False, threads=1)).path
    capsys.readouterr()
    path = resolve_to_load(str(folder))
    said = capsys.readouterr().err
    assert "packing its integers" in said
    assert len(said.splitlines()) == 1
    assert path.suffix == ".gguf"
    assert types_of(path) == {"Q4_0"}
    assert resolve_to_load(str(folder)) == path
    assert capsys.readouterr().err == ""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}) + " ")
    again = resolve_to_load(str(folder))
    assert again != path
    assert not path.exists()


@pytest.mark.timeout(600)
def test_what_cannot_be_packed_is_said_in_one_line(tmp_path: Path) -> None:
    """With the reason that `edgechat quantize` gives."""
    folder = quantized(tmp_path / "quantized")
    (folder / "model.safetensors").write_bytes(b"\x01\0\0\0\0\0\0\0")
    with pytest.raises(UnsupportedError, match=r"can't be packed into a GGUF file: .*is cut off"):
        repacked(folder, lambda text: None)
    with pytest.raises(NotFoundError):
        resolve_to_load(str(tmp_path / "nothing"))
