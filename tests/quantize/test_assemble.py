"""What is copied as it is must be numbers, too."""

import shutil
from pathlib import Path

import pytest

from models.errors import BrokenModelFile
from quantize.layers import LayerRequest, run
from quantize.recipe import Method, Recipe
from quantize.streaming import Streamer

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_outside_of_the_layers(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    """In bfloat16, where no text comes by: before the first layer, and nothing is left."""
    from safetensors.torch import load_file, save_file

    source = tmp_path / "source"
    shutil.copytree(tiny_folder, source)
    tensors = load_file(source / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(Streamer, "run", pytest.fail)
    recipe = Recipe(method=Method.RTN)
    with pytest.raises(BrokenModelFile, match=f"{name} holds NaN or infinity"):
        run(LayerRequest(source, recipe, tmp_path / "out", evaluated=False, threads=1))
    assert list(tmp_path.iterdir()) == [source]
