"""What a streaming quantization needs: inputs observed, matrices swapped, one layer at a time."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.config import Layout, QueryNorm
from models.errors import BrokenModelFile, UnsupportedModel
from tests.oracles import hf_models, raw_checkpoint
from tests.oracles.hf_configs import CONVERTIBLE, OTHER

pytestmark = pytest.mark.oracle

CASES = {**CONVERTIBLE, **OTHER}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def saved(case: str, folder: Path) -> Any:
    config = CASES[case]()
    config._attn_implementation = "eager"
    return hf_models.save_model(folder, config)


def ids(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.tensor(np.random.default_rng(2).integers(0, 96, shape))


@pytest.mark.parametrize("case", ["llama with biases", "gemma3", "phi3", "olmo2", "granite"])
def test_the_inputs_of_every_matrix_are_those_in_transformers(case: str, tmp_path: Path) -> None:
    """Named alike, layer by layer, and all of them."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    model = saved(case, tmp_path)
    expected: dict[str, Any] = {}
    for name, module in model.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(
                lambda _, args, name=name: expected.update({name: args[0].detach()})
            )
    tokens = ids((2, 40))
    with torch.no_grad():
        model(tokens)
    seen: dict[str, Any] = {}
    with open_weights(tmp_path) as weights:
        decoder = Decoder(weights)
        hidden = decoder.embed(tokens)
        for layer in decoder.layers():
            prefix = f"layers.{layer.index}."
            with layer.observed(lambda name, x, prefix=prefix: seen.update({prefix + name: x})):
                hidden = layer.forward(hidden, torch.arange(40))
            assert set(layer.linears) == {
                name.removeprefix(prefix) for name in expected if name.startswith(prefix)
            }
    assert seen.keys() == expected.keys()
    for name, x in seen.items():
        assert torch.allclose(x, expected[name], rtol=1e-4, atol=1e-4), name


def test_matrices_with_one_input_are_told_the_same_tensor(tmp_path: Path) -> None:
    """So that what is collected for it is collected once."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    saved("qwen3", tmp_path)
    told: list[tuple[str, Any]] = []
    with open_weights(tmp_path) as weights:
        decoder = Decoder(weights)
        layer = decoder.layer(1)
        hidden = decoder.embed(ids((2, 8)))
        with layer.observed(lambda name, x: told.append((name, x))):
            layer.forward(hidden, torch.arange(8))
        n_told = len(told)
        layer.forward(hidden, torch.arange(8))
    assert len(told) == n_told, "observed after the end"
    names = [name.rpartition(".")[2] for name, _ in told]
    assert names == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    inputs = dict(told)
    for group in layer.groups:
        assert all(inputs[name] is inputs[group[0]] for name in group)
    assert len({id(x) for x in inputs.values()}) == len(layer.groups) == 4


def test_experts_see_the_tokens_that_chose_them(tmp_path: Path) -> None:
    """Each token goes to as many experts as the config says, and the router is no matrix to quantize."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    saved("qwen3 moe", tmp_path)
    rows: dict[str, int] = {}
    with open_weights(tmp_path) as weights:
        decoder = Decoder(weights)
        layer = decoder.layer(0)
        with layer.observed(lambda name, x: rows.update({name: x.shape[0]})):
            layer.forward(decoder.embed(ids((2, 30))), torch.arange(30))
    assert sum(rows[name] for name in rows if name.endswith("up_proj")) == 2 * 30 * 2
    assert "mlp.gate" not in layer.linears
    assert len([name for name in layer.linears if name.startswith("mlp.experts.")]) == 6 * 3


def test_a_matrix_can_be_swapped(tmp_path: Path) -> None:
    """For another weight, or for anything that multiplies."""
    import torch

    from models.decoder import Decoder
    from models.linear import Linear
    from models.weights import open_weights

    saved("llama", tmp_path)
    with open_weights(tmp_path) as weights:
        decoder = Decoder(weights)
        layer = decoder.layer(0)
        hidden, positions = decoder.embed(ids((1, 8))), torch.arange(8)
        before = layer.forward(hidden, positions)
        dense = layer.linears["mlp.down_proj"]
        assert isinstance(dense, Linear)
        layer.linears["mlp.down_proj"] = lambda x: 2 * dense(x)
        twice = layer.forward(hidden, positions)
        layer.linears["mlp.down_proj"] = Linear(torch.zeros_like(dense.weight))
        none = layer.forward(hidden, positions)
    assert torch.allclose(twice - none, 2 * (before - none), atol=1e-5)
    assert not torch.allclose(before, none, atol=1e-2)


@pytest.mark.parametrize("case", ["llama", "gemma3", "gemma2 with low caps", "mistral with a window"])
def test_token_by_token_with_a_cache(case: str, tmp_path: Path) -> None:
    """The last tokens, in twos, after a first part, each layer as in one go."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    class Cache:
        def __init__(self) -> None:
            self.kept: dict[int, tuple[Any, Any]] = {}

        def extend(self, layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
            if layer in self.kept:
                keys = torch.cat([self.kept[layer][0], keys], dim=2)
                values = torch.cat([self.kept[layer][1], values], dim=2)
            self.kept[layer] = keys, values
            return keys, values

    saved(case, tmp_path)
    cache = Cache()
    with open_weights(tmp_path) as weights:
        decoder = Decoder(weights)
        hidden = decoder.embed(ids((2, 30)))
        for layer in decoder.layers():
            whole = layer.forward(hidden, torch.arange(30))
            pieces = [(0, 21), (21, 23), (23, 24), (24, 30)]
            parts = [
                layer.forward(hidden[:, start:stop], torch.arange(start, stop), cache)
                for start, stop in pieces
            ]
            assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)
            hidden = whole


def test_sequences_may_have_positions_of_their_own(tmp_path: Path) -> None:
    """Only distances matter to rotary positions, and each sequence counts for itself."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    saved("llama", tmp_path)
    with open_weights(tmp_path) as weights:
        decoder = Decoder(weights)
        layer, hidden = decoder.layer(0), decoder.embed(ids((2, 12)))
    plain = layer.forward(hidden, torch.arange(12))
    moved = layer.forward(hidden, torch.arange(12) + torch.tensor([[0], [31]]))
    stretched = layer.forward(hidden, torch.arange(12) * torch.tensor([[1], [2]]))
    assert torch.allclose(plain, moved, atol=1e-5)
    assert torch.allclose(plain[0], stretched[0], atol=1e-5)
    assert not torch.allclose(plain[1], stretched[1], atol=1e-3)


def test_one_layer_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer is read, those before it are gone."""
    from models import decoder as module
    from models.weights import open_weights

    saved("llama", tmp_path)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    seen: list[int] = []

    class Weights:
        def __init__(self, inner: Any) -> None:
            self.inner, self.config = inner, inner.config

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def layer(self, index: int, device: str) -> Any:
            seen.append(len(alive))
            tensors = self.inner.layer(index, device)
            for tensor in tensors.values():
                alive.add(tensor)
            return tensors

    with open_weights(tmp_path) as weights:
        module.Decoder(Weights(weights)).forward(ids((1, 4)))  # type: ignore[arg-type]
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_begin_where_torch_lets_them_begin(dtype: str, tmp_path: Path) -> None:
    """Kernels group their sums by it: elsewhere the same weights would give other bits each time."""
    from models.weights import open_weights

    hf_models.save_model(tmp_path, CASES["llama with biases"](), dtype)
    with open_weights(tmp_path) as weights:
        for index in range(3):
            assert all(tensor.data_ptr() % 64 == 0 for tensor in weights.layer(index).values())


QUIRKS: dict[str, tuple[str, dict[str, Any]]] = {
    "rope": ("llama", {"rotary_layers": (False,) * 3}),
    "rope scaling": ("llama with llama3 rope", {"rope": "plain"}),
    "yarn": ("qwen2 with yarn", {"rope": "plain"}),
    "yarn's rounding": ("qwen2 with yarn that is not rounded", {"rope": "truncated"}),
    "longrope": ("phi3 in a long text", {"rope": "plain"}),
    "a part of each head": ("phi3 with a part of each head", {"rope": "plain"}),
    "layers without positions": ("smollm3", {"rotary_layers": (True,) * 5}),
    "local rope": ("gemma3", {"local_rope": None}),
    "window": ("mistral with a window", {"sliding_layers": (False,) * 3}),
    "pattern": ("gemma3", {"sliding_layers": (True,) * 8}),
    "soft cap": ("gemma2", {"attention_soft_cap": None}),
    "final soft cap": ("gemma2", {"final_soft_cap": None}),
    "attention scale": ("gemma3 with its own scale", {"attention_scale": None}),
    "query norm": ("qwen3", {"layout": Layout()}),
    "whole query norm": ("olmo2", {"layout": "no query norm"}),
    "norm plus one": ("gemma2", {"layout": "not plus one"}),
    "scaled embedding": ("gemma2", {"layout": "not scaled"}),
    "activation": ("gemma2", {"activation": "silu"}),
    "tanh": ("gemma2", {"activation": "gelu"}),
    "embedding multiplier": ("granite", {"embedding_multiplier": 1.0}),
    "residual multiplier": ("granite", {"residual_multiplier": 1.0}),
    "attention multiplier": ("granite", {"attention_multiplier": None}),
    "logits' divisor": ("granite", {"logits_divisor": 1.0}),
    "normalized experts": ("qwen3 moe", {"experts": "as they are"}),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_every_quirk_matters(quirk: str, tmp_path: Path) -> None:
    """Without it the logits are others: the comparison with transformers would notice."""
    from models.decoder import Decoder
    from models.weights import open_weights

    case, change = QUIRKS[quirk]
    saved(case, tmp_path)
    tokens = ids((1, 100))
    with open_weights(tmp_path) as weights:
        config = weights.config
        expected = Decoder(weights).forward(tokens)
        values: dict[Any, Any] = {
            "plain": replace(config.rope, scaling=None, fraction=1.0),
            "truncated": config.rope.scaling
            and replace(config.rope, scaling=replace(config.rope.scaling, truncate=True)),
            "no query norm": replace(config.layout, query_norm=QueryNorm.NONE),
            "not plus one": replace(config.layout, norm_adds_one=False),
            "not scaled": replace(config.layout, scaled_embedding=False),
            "as they are": config.experts and replace(config.experts, normalized=False),
        }
        weights.config = replace(
            config, **{k: values.get(v, v) if isinstance(v, str) else v for k, v in change.items()}
        )
        seen = Decoder(weights).forward(tokens)
    # GELU's two forms are close to each other.
    assert (seen - expected).abs().max() > 1e-4 * expected.abs().max()


def test_the_embedding_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the parts, whatever the shape of the tokens."""
    import torch

    from models import weights as module

    model = saved("llama", tmp_path)
    tokens = ids((3, 5, 2))
    expected = model.model.embed_tokens(tokens).detach()
    for elements in (1, 64 * 7, 2**20):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", elements)
        with module.open_weights(tmp_path) as weights:
            assert torch.equal(weights.embed(tokens), expected)


def test_the_output_matrix_keeps_its_sixteen_bits(tmp_path: Path) -> None:
    """Half the memory, the same logits."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.decoder import Decoder
    from models.weights import open_weights

    hf_models.save_model(tmp_path, CASES["llama"](), "bfloat16")
    # Read again: the one that was in bfloat16 has its rotary frequencies rounded too.
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = model(ids((1, 20))).logits
    with open_weights(tmp_path) as weights:
        assert weights.head().dtype is torch.bfloat16
        seen = Decoder(weights).forward(ids((1, 20)))
    assert (seen - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("case", ["llama", "gemma2", "phi3", "olmo2"])
def test_all_is_computed_on_the_device_that_was_asked_for(case: str, tmp_path: Path) -> None:
    """torch's "meta" stands for any other than the CPU: it refuses to mix."""
    from models.decoder import Decoder
    from models.weights import open_weights

    saved(case, tmp_path)
    with open_weights(tmp_path) as weights:
        logits = Decoder(weights, "meta").forward(ids((2, 40)))
    assert logits.device.type == "meta"
    assert logits.shape == (2, 40, 96)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_part_of_a_model_that_also_sees(prefix: str, tmp_path: Path) -> None:
    """Its tensors have longer names."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    tensors = raw_checkpoint.weights()
    raw_checkpoint.write(tmp_path / "plain", tensors=tensors)
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    raw_checkpoint.write(tmp_path / "part", tensors=renamed)
    logits = []
    for folder in ("plain", "part"):
        with open_weights(tmp_path / folder) as weights:
            logits.append(Decoder(weights).forward(ids((1, 9))))
    assert torch.equal(*logits)


BROKEN: dict[str, tuple[type[Exception], str]] = {
    "missing": (BrokenModelFile, r"model\.layers\.1\.mlp\.up_proj\.weight is missing"),
    "shape": (BrokenModelFile, "has the shape .3, 3., config.json makes it .128, 64."),
    "nan": (BrokenModelFile, "up_proj.weight holds NaN or infinity"),
    "type": (UnsupportedModel, "is of type I64: F32, F16 and BF16 are supported"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_weights_are_named(fault: str, tmp_path: Path) -> None:
    """When their layer is read, and not before."""
    from models.weights import open_weights

    tensors = raw_checkpoint.weights()
    name = "model.layers.1.mlp.up_proj.weight"
    if fault == "missing":
        del tensors[name]
    elif fault == "shape":
        tensors[name] = np.zeros((3, 3), np.float32)
    elif fault == "nan":
        tensors[name][5, 5] = np.nan
    else:
        tensors[name] = tensors[name].astype(np.int64)
    raw_checkpoint.write(tmp_path, tensors=tensors)
    kind, message = BROKEN[fault]
    with open_weights(tmp_path) as weights:
        weights.layer(0)
        with pytest.raises(kind, match=message):
            weights.layer(1)


def test_an_activation_that_is_not_known() -> None:
    """Is named, with those that are."""
    from models.mlp import activation

    with pytest.raises(UnsupportedModel, match="activation 'xielu' is not supported: silu,"):
        activation("xielu")
