"""Which matrices of W8A8 keep their inputs in 16 bits, against what transformers computes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quantize import kept_inputs
from quantize.layers import LayerRequest, LayerResult, run
from quantize.recipe import Format, Recipe, Scheme

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

W8A8 = Recipe(Format.INT8, bits=8, scheme=Scheme.W8A8)


def made(folder: Path, output: Path, recipe: Recipe = W8A8, **changes: Any) -> LayerResult:
    request = LayerRequest(folder, recipe, output, samples=4, length=32, evaluated=False, threads=1)
    return run(replace(request, **changes))


def rounded(x: torch.Tensor) -> torch.Tensor:
    """In float64, each token to 127 steps on each side."""
    steps = x.abs().amax(-1, keepdim=True) / 127
    return torch.where(steps > 0, (x / steps).round() * steps, x)


def changes(folder: Path) -> dict[str, float]:
    """What rounding inputs makes of what goes by after each matrix that adds to it, by transformers."""
    from transformers import AutoModelForCausalLM

    from quantize.calibration import FolderTokenizer, bundled, samples

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().double()
    tokens = torch.from_numpy(samples(bundled(), FolderTokenizer(folder), count=4, length=32).tokens)
    # The norm that is given what goes by before, the matrix, and what has what goes by afterwards.
    places = []
    for index, layer in enumerate(model.model.layers):
        name = f"model.layers.{index}"
        places.append((f"{name}.self_attn.o_proj", layer.self_attn.o_proj, layer.input_layernorm))
        places.append((f"{name}.mlp.down_proj", layer.mlp.down_proj, layer.post_attention_layernorm))
    seen: dict[str, torch.Tensor] = {}
    hooks = []
    for name, matrix, norm in places:
        for kind, module in (("in", matrix), ("before", norm)):
            hooks.append(
                module.register_forward_pre_hook(
                    lambda _, args, key=f"{name} {kind}": seen.__setitem__(key, args[0])
                )
            )
    with torch.no_grad():
        model(tokens)
        found = {}
        for name, matrix, _ in places:
            x = seen[f"{name} in"]
            after = seen[f"{name} before"] + matrix(x)
            change = matrix(rounded(x)) - matrix(x)
            found[name] = (change.square().sum(-1) / after.square().sum(-1)).mean().item()
    for hook in hooks:
        hook.remove()
    return found


def test_those_that_change_the_most_of_what_goes_by(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four layers each may change a quarter of what is allowed. They are stored in W8A16, named in a group
    of their own, and told."""
    from safetensors import safe_open

    found = changes(tiny_folder)
    ordered = sorted(found.values())
    limit = (ordered[4] * ordered[5]) ** 0.5
    monkeypatch.setattr(kept_inputs, "ALLOWED", 4 * limit)
    expected = {name for name, change in found.items() if change > limit}
    assert len(expected) == 3

    result = made(tiny_folder, tmp_path / "out")
    config = json.loads((result.path / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    groups = config["config_groups"]
    assert groups["group_0"]["targets"] == ["Linear"]
    assert groups["group_0"]["format"] == "int-quantized"
    assert groups["group_0"]["input_activations"]["num_bits"] == 8
    assert set(groups["group_1"]["targets"]) == expected
    assert groups["group_1"]["format"] == "pack-quantized"
    assert groups["group_1"]["input_activations"] is None
    with safe_open(result.path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert {name.removesuffix(".weight_packed") for name in names if "weight_packed" in name} == expected
    assert not any(f"{name}.weight" in names for name in expected)
    assert result.receipt.keeping_inputs == (3, 28)
    told = {
        f"model.layers.{layer['layer']}.{matrix['name']}"
        for layer in result.receipt.layers
        for matrix in layer["matrices"]
        if matrix.get("keeps_inputs")
    }
    assert told == expected


def test_nothing_is_folded_into_a_matrix_that_keeps_its_inputs(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays the source's but for its eight bits, where the same matrix is else multiplied with scales."""
    from models.weights import open_weights

    recipe = replace(W8A8, smooth=True)
    far = {}
    for allowed, expected in ((0.0, 8), (1e9, 0)):
        monkeypatch.setattr(kept_inputs, "ALLOWED", allowed)
        result = made(tiny_folder, tmp_path / str(expected), recipe)
        assert result.receipt.keeping_inputs == (expected, 28)
        with open_weights(tiny_folder) as source, open_weights(result.path) as weights:
            before, after = (one.layer(1)["mlp.down_proj.weight"] for one in (source, weights))
        far[expected] = float((after - before).norm() / before.norm())
    assert far[8] < 0.02
    assert far[0] > 0.1


def test_a_resumed_run_knows_what_was_kept(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_after_two_layers: Any
) -> None:
    monkeypatch.setattr(kept_inputs, "ALLOWED", 0)
    request = LayerRequest(
        tiny_folder, W8A8, tmp_path / "out", samples=4, length=32, evaluated=False, threads=1
    )
    stopped_after_two_layers(request)
    result = run(replace(request, resume=True))
    whole = made(tiny_folder, tmp_path / "whole")
    for name in ("config.json", "model.safetensors"):
        assert (result.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_the_comparison_rounds_the_others_alone(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states that a result's comparison is made of, against transformers' with hooks that round."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from models.weights import open_weights
    from quantize.compare import last_states
    from tests.oracles.packed_weights import take_weights

    monkeypatch.setattr(kept_inputs, "ALLOWED", 0)
    result = made(tiny_folder, tmp_path / "out")
    config = AutoConfig.from_pretrained(result.path)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    take_weights(model, result.path)
    tokens = torch.arange(3, 67).reshape(2, 32)
    found = {}
    for kinds in (("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("_proj",)):
        hooks = [
            module.register_forward_pre_hook(lambda _, args: (rounded(args[0]),))
            for name, module in model.named_modules()
            if name.endswith(kinds)
        ]
        with torch.no_grad():
            states: list[torch.Tensor] = []
            last = model.model.norm.register_forward_pre_hook(
                lambda _, args, states=states: states.append(args[0])
            )
            model(tokens)
        for hook in (*hooks, last):
            hook.remove()
        found[kinds] = states[0]
    with open_weights(result.path) as weights, torch.no_grad():
        seen = last_states(weights, tokens)
    right, wrong = found.values()
    sizes = right.norm(dim=-1)
    apart, otherwise = (seen - right).norm(dim=-1) / sizes, (wrong - right).norm(dim=-1) / sizes
    # Of most tokens all is the same; of the others an input fell on the other side of a half.
    assert apart.median() < 1e-5
    assert apart.max() < otherwise.min()


def test_by_default_little_is_kept(tiny_folder: Path, tmp_path: Path) -> None:
    """And then the format is that of W8A8 alone."""
    result = made(tiny_folder, tmp_path / "out", replace(W8A8, method="rtn"))
    config = json.loads((result.path / "config.json").read_text())["quantization_config"]
    assert list(config["config_groups"]) == ["group_0"]
    assert config["format"] == "int-quantized"
    assert result.receipt.keeping_inputs == (0, 28)
