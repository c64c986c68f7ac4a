"""A GGUF file as the source of what goes layer by layer: seen as the checkpoint that it was made from."""

import json
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.errors import UnsupportedModel
from models.ggml_types import GGMLType
from quantize.formats.safetensors import write_file
from quantize.layers import LayerRequest, run
from quantize.pipeline import Request
from quantize.pipeline import run as convert
from quantize.plan import target_of
from quantize.recipe import Format, Method, Recipe
from quantize.source import Source, open_source
from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE
from tests.oracles.llama_reference import loaded

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]

ROUND_TRIPS = (
    "llama",
    "llama with biases",
    "qwen2",
    "qwen3 moe",
    "gemma2",
    "gemma3",
    "phi3",
    "smollm3",
    "olmo2",
)
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def saved(case: str, folder: Path, dtype: str = "float32") -> Any:
    """A tiny model of that config, with a tokenizer; the model in float32."""
    config = CONVERTIBLE[case]()
    if config.model_type.startswith("gemma"):
        config.vocab_size = hf_models.save_sentencepiece(folder)
    else:
        config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3) + 3  # rows without a token
    return hf_models.save_model(folder, config, dtype)


@contextmanager
def converted(folder: Path, output: Path, kind: str) -> Iterator[Source]:
    """The folder as a GGUF file, open as a source."""
    with open_source(convert(Request(folder, target_of(kind), output)).path) as source:
        yield source


def back(source: Source, folder: Path) -> Path:
    """The view as a checkpoint's folder, dense."""
    from quantize.streaming import as_stored

    folder.mkdir()
    weights = source.weights
    tensors = {name: as_stored(weights, one) for name, one in weights.checkpoint.tensors.items()}
    write_file(folder / "model.safetensors", tensors)
    for path in source.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def read(folder: Path) -> dict[str, Any]:
    """All tensors, by a reader that nobody here wrote."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("case", CONVERTIBLE)
def test_transformers_computes_the_same_with_what_comes_back(case: str, tmp_path: Path) -> None:
    """Of every family and quirk: config.json says what the metadata say, and each tensor is in its place."""
    import torch
    from transformers import AutoModelForCausalLM

    model = saved(case, tmp_path / "model")
    with converted(tmp_path / "model", tmp_path / "x.gguf", "f32") as source:
        folder = back(source, tmp_path / "back")
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.random.default_rng(1).integers(4, model.config.vocab_size - 3, 100).tolist()
    expected, seen = hf_models.logits(model, ids), hf_models.logits(again, ids)
    scale = np.abs(expected).max()
    assert scale > 1, "a model this flat proves nothing"
    assert np.abs(seen - expected).max() < 2e-5 * scale


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_the_tensors_come_back_bit_by_bit(case: str, kind: str, tmp_path: Path) -> None:
    """Names, types, order and bits, whatever llama.cpp's layout did to them."""
    import torch

    saved(case, tmp_path / "model", DTYPES[kind])
    with converted(tmp_path / "model", tmp_path / "x.gguf", kind) as source:
        seen = read(back(source, tmp_path / "back"))
    expected = read(tmp_path / "model")
    assert seen.keys() == expected.keys()
    for name, tensor in expected.items():
        if case.startswith("gemma") and kind == "f32" and "norm" in name:
            # The file has one more than the weight, rounded to float32.
            assert torch.equal(seen[name], (tensor + 1) - 1), name
            continue
        assert seen[name].dtype == tensor.dtype, name
        assert torch.equal(seen[name], tensor), name


@pytest.mark.parametrize("kind", [hf_models.GPT2_LIKE, hf_models.LLAMA3, hf_models.QWEN2, hf_models.SMOLLM])
@pytest.mark.parametrize("bos", [False, True])
def test_byte_level_tokens_are_the_same(kind: str, bos: bool, tmp_path: Path) -> None:
    """In transformers before and after, and in llama.cpp: with what stands around a text, and without."""
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    config = CONVERTIBLE["llama"]()
    config.vocab_size = hf_models.save_bpe(folder, kind, bos=bos)
    hf_models.save_model(folder, config)
    before = AutoTokenizer.from_pretrained(folder)
    with converted(folder, tmp_path / "x.gguf", "f16") as source:
        after = AutoTokenizer.from_pretrained(back(source, tmp_path / "back"))
    _same_tokens(before, after)
    with loaded(tmp_path / "x.gguf") as reference:
        expected = reference.tokenize(hf_models.SCRIPTS, add_special=True, parse_special=True)
    assert after.encode(hf_models.SCRIPTS) == expected
    messages = [{"role": "user", "content": "The dog sleeps."}]
    assert after.apply_chat_template(messages, tokenize=False) == "<|begin|>The dog sleeps.<|end|>"
    assert (after.bos_token, after.eos_token, after.pad_token) == ("<|begin|>", "<|end|>", "<|pad|>")


@pytest.mark.parametrize("as_json", [True, False])
def test_sentencepiece_tokens_are_the_same(as_json: bool, tmp_path: Path) -> None:
    """Merges come of scores, and byte tokens where no other fits."""
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    config = CONVERTIBLE["gemma3"]()
    config.vocab_size = hf_models.save_sentencepiece(folder, as_json=as_json)
    hf_models.save_model(folder, config)
    with converted(folder, tmp_path / "x.gguf", "f16") as source:
        after = AutoTokenizer.from_pretrained(back(source, tmp_path / "back"))
    if as_json:
        _same_tokens(AutoTokenizer.from_pretrained(folder), after)
    with loaded(tmp_path / "x.gguf") as reference:
        expected = reference.tokenize(hf_models.SCRIPTS, add_special=True, parse_special=True)
    assert after.encode(hf_models.SCRIPTS) == expected


def _same_tokens(before: Any, after: Any) -> None:
    decomposed = unicodedata.normalize("NFD", hf_models.SCRIPTS)
    for text in (
        hf_models.SCRIPTS,
        decomposed,
        "",
        " ",
        "\n\n\n  x",
        "a <|end|> b<tool>c",
        *hf_models.CORPUS,
    ):
        for special in (True, False):
            seen = after.encode(text, add_special_tokens=special)
            assert seen == before.encode(text, add_special_tokens=special), text
            assert after.decode(seen) == before.decode(seen)


@pytest.mark.parametrize("name", ["starter_gguf", "gemma_gguf"])
def test_real_vocabularies(name: str, request: pytest.FixtureRequest) -> None:
    """SmolLM2's and Gemma's tokens in transformers are llama.cpp's."""
    from transformers import AutoTokenizer

    from quantize.compare import held_out

    path: Path = request.getfixturevalue(name)
    texts = [hf_models.SCRIPTS, held_out()[:20_000], "x = {\n\t\t'a': 1,\n        'b': 22\n}\n\n\n\n"]
    with open_source(path) as source:
        tokenizer = AutoTokenizer.from_pretrained(source.folder)
    with loaded(path) as reference:
        for text in texts:
            expected = reference.tokenize(text, add_special=True, parse_special=True)
            assert tokenizer.encode(text) == expected
            assert tokenizer.decode(expected, skip_special_tokens=True) == text


def test_a_quantized_file_is_dequantized_and_said_so(tmp_path: Path) -> None:
    """Its matrices are what llama.cpp's reference makes of the blocks, with each head's rows put back."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    from models.checkpoint import GGUFCheckpoint

    saved("llama", tmp_path / "model")
    path = convert(Request(tmp_path / "model", target_of("q8_0"), tmp_path / "x.gguf")).path
    with GGUFCheckpoint(path) as raw, open_source(path) as source:
        heads = source.weights.config.n_heads
        blocks = raw.stored_rows("blk.1.attn_q.weight")
        expected = dequantize(blocks, GGMLQuantizationType.Q8_0)
        expected = expected.reshape(heads, -1, 2, expected.shape[1]).swapaxes(1, 2).reshape(expected.shape)
        seen = source.weights.checkpoint.rows("model.layers.1.self_attn.q_proj.weight")
        assert np.array_equal(seen, expected)
        part = source.weights.checkpoint.rows("model.layers.1.self_attn.q_proj.weight", 3, 9)
        assert np.array_equal(part, expected[3:9])
        assert any("dequantized from Q8_0" in note for note in source.notes)
        embedding = source.weights.checkpoint.tensors["model.embed_tokens.weight"]
        assert embedding.type is GGMLType.BF16


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        (Recipe(Format.GPTQ, Method.GPTQ), "bf16"),
        (Recipe(Format.AWQ, Method.AWQ), "f16"),
        (Recipe(Format.INT8, Method.RTN, 8), "q8_0"),
    ],
)
def test_it_is_quantized_as_its_checkpoint_is(
    recipe: Recipe, kind: str, tiny_folder: Path, tmp_path: Path
) -> None:
    """From the 16-bit file the same bytes come as from the folder; the result names its source."""
    path = convert(Request(tiny_folder, target_of(kind), tmp_path / "tiny-model.gguf")).path
    request = LayerRequest(path, recipe, tmp_path / "out", samples=8, length=64, threads=1)
    result = run(request)
    record = json.loads((result.path / "edgechat-receipt.json").read_text())
    assert record["source"]["name"] == "tiny-model.gguf"
    assert record["evaluation"]["mean_kl"] < 0.5
    if kind == "bf16":
        folder = LayerRequest(tiny_folder, recipe, tmp_path / "of-folder", samples=8, length=64, threads=1)
        expected, seen = read(run(folder).path), read(result.path)
        assert seen.keys() == expected.keys()
        for name, tensor in expected.items():
            assert (seen[name] == tensor).all(), name
    if kind == "q8_0":
        assert any("dequantized from Q8_0" in note for note in result.notes)
    from transformers import AutoConfig, AutoTokenizer

    assert AutoConfig.from_pretrained(result.path).model_type == "llama"
    before, after = (AutoTokenizer.from_pretrained(one) for one in (tiny_folder, result.path))
    assert after.encode(hf_models.SCRIPTS) == before.encode(hf_models.SCRIPTS)


def test_kinds_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    """The kind of the tokenizer, and of the pre-tokenizer."""
    from models.gguf import read_header
    from models.gguf_to_tokenizer import tokenizer_files

    saved("llama", tmp_path / "model")
    header = read_header(convert(Request(tmp_path / "model", target_of("f16"), tmp_path / "x.gguf")).path)
    assert tokenizer_files(header)
    for key, value, message in (
        ("tokenizer.ggml.model", "t5", "a tokenizer of the kind 't5', which can't be made"),
        ("tokenizer.ggml.pre", "bloom", "its pre-tokenizer 'bloom' can't be made .* gpt-2, .* can"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            tokenizer_files(replace(header, metadata={**header.metadata, key: value}))


@pytest.mark.parametrize("source_format", [Format.GPTQ, Format.AWQ, Format.INT8])
@pytest.mark.parametrize("target", [Format.GPTQ, Format.AWQ, Format.INT8])
def test_what_is_quantized_already_is_read_back(
    source_format: Format, target: Format, tiny_folder: Path, tmp_path: Path
) -> None:
    """From each of our formats to each: said to cost quality, and readable as the target alone."""
    from models.packed import PackedCheckpoint
    from models.weights import open_weights
    from quantize.recipe import METHODS

    def made(source: Path, form: Format, name: str) -> Any:
        recipe = Recipe(form, METHODS[form][0], bits=8 if form is Format.INT8 else 4)
        return run(LayerRequest(source, recipe, tmp_path / name, samples=4, length=32, threads=1))

    first = made(tiny_folder, source_format, "first")
    second = made(first.path, target, "second")
    assert any("second quantization costs quality" in note for note in second.notes)
    with open_weights(second.path) as weights:
        assert isinstance(weights.checkpoint, PackedCheckpoint)
        assert len(weights.checkpoint.packed) == 4 * 7
    method = json.loads((second.path / "config.json").read_text())["quantization_config"]["quant_method"]
    assert method == {"gptq": "gptq", "awq": "awq", "int8": "compressed-tensors"}[target]
    others = {"quantize_config.json", "quant_config.json"} & {one.name for one in second.path.iterdir()}
    assert others == {"gptq": {"quantize_config.json"}, "awq": {"quant_config.json"}}.get(target, set())
