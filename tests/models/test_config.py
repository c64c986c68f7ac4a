"""config.json in the forms that transformers has written, and in those that make no sense."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.config import RopeKind, llama3_factors, parse
from models.errors import BrokenModelFile, UnsupportedModel
from models.families import FAMILIES, family_of, known_families
from models.json_file import read_json
from tests.oracles.raw_checkpoint import config

WHERE = Path("config.json")


def parsed(**changes: Any) -> Any:
    raw = config(**changes)
    return parse(raw, family_of(raw, WHERE).defaults, WHERE)


def test_a_plain_llama() -> None:
    """All numbers, and what is left out."""
    model = parsed(num_key_value_heads=None, rope_theta=None, max_position_embeddings=None)
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.head_dim) == (2, 4, 4, 16)
    assert model.rope.theta == 10000.0
    assert model.rope.scaling is None
    assert model.n_ctx == 2048
    assert model.tied
    assert model.sliding_layers == (False, False)


@pytest.mark.parametrize(
    "form",
    [
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_theta": 5},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}, "rope_theta": None},
    ],
)
def test_rope_in_the_forms_of_transformers_4_and_5(form: dict[str, Any]) -> None:
    """They say the same."""
    rope = parsed(**form).rope
    assert rope.theta == 5.0
    assert rope.scaling.kind is RopeKind.LINEAR
    assert rope.scaling.factor == 2.0


@pytest.mark.oracle
def test_gemma_in_both_forms_is_as_transformers_reads_it() -> None:
    """Version 4 names the local base and the pattern; version 5 lists them layer by layer."""
    from transformers import Gemma3TextConfig

    new = json.loads(Gemma3TextConfig(num_hidden_layers=7, sliding_window=32).to_json_string())
    new["architectures"] = ["Gemma3ForCausalLM"]
    old = {key: value for key, value in new.items() if key not in {"rope_parameters", "layer_types"}}
    old |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    old.pop("_sliding_window_pattern", None)
    family = family_of(new, WHERE)
    first, second = (parse(raw, family.defaults, WHERE) for raw in (new, old))
    assert first == second
    assert first.local_rope is not None
    assert (first.rope.theta, first.local_rope.theta) == (1e6, 1e4)
    assert first.sliding_layers == (True,) * 5 + (False, True)


def test_the_text_part_of_a_model_that_also_sees() -> None:
    """Its numbers are its own; what it leaves out is its family's default."""
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    }  # fmt: skip
    model = parse(raw, family_of(raw, WHERE).defaults, WHERE)
    assert (model.hidden_size, model.n_heads, model.n_kv_heads, model.head_dim) == (2560, 8, 4, 256)
    assert model.tied
    assert model.rope.scaling is not None
    assert model.rope.scaling.factor == 8.0
    assert model.local_rope is not None
    assert model.local_rope.scaling is None


@pytest.mark.oracle
def test_llama3_factors_are_those_of_transformers() -> None:
    """Frequency by frequency, from unchanged to divided by the whole factor."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    theirs = LlamaConfig(hidden_size=4096, num_attention_heads=32, rope_parameters=parameters)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    plain = 1 / 500000.0 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    scaling = parsed(rope_parameters=parameters, head_dim=128).rope.scaling
    ours = llama3_factors(scaling, 500000.0, 128)
    assert ours[0] == 1.0
    assert ours[-1] == 8.0
    assert sum(1 < factor < 8 for factor in ours) > 3
    assert torch.allclose(torch.tensor(ours, dtype=torch.float64), plain / scaled.double(), rtol=1e-5)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0: a whole number from 1 to 512"),
    ({"num_hidden_layers": 513}, "num_hidden_layers is 513"),
    ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"num_attention_heads": 3}, "hidden_size 64 is no multiple of num_attention_heads 3"),
    ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
    ({"head_dim": 15}, "head_dim 15 is odd"),
    ({"rms_norm_eps": "1"}, "rms_norm_eps is '1'"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"rope_theta": -1}, "rope_theta is -1"),
    ({"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"vocab_size": 10**9}, "vocab_size is 1000000000"),
    ({"partial_rotary_factor": 0.2}, "rotary positions on 3 of a head's 16 numbers"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5: a number over 0 up to 1"),
    ({"rope_scaling": {"type": "longrope"}}, "short_factor has None: a list of 8 numbers"),
    ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7}}, "short_factor has 7 entries"),
    ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7 + ["1"]}}, "short_factor, entry 7, is '1'"),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1}},
     "original_max_position_embeddings is 1"),
    ({"no_rope_layers": [1]}, "no_rope_layers has 1 entries for 2 layers"),
    ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
    ({"num_experts": 4, "num_experts_per_tok": 2}, "moe_intermediate_size is missing"),
    ({"residual_multiplier": "1"}, "residual_multiplier is '1'"),
    ({"sliding_window": 4, "layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_numbers_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    """Each is named, with what belongs there."""
    with pytest.raises(BrokenModelFile, match=message):
        parsed(**changes)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"type": "dynamic"}}, "scaling 'dynamic' is not supported: linear, llama3, yarn, "),
    ({"quantization_config": {"quant_method": "hqq"}}, r"is quantized already \(hqq\)"),
    ({"sliding_window": 4, "layer_types": ["chunked"] * 2}, "layers of type 'chunked'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED)
def test_what_is_sound_but_not_supported(changes: dict[str, Any], message: str) -> None:
    """Is another kind of error."""
    with pytest.raises(UnsupportedModel, match=message):
        parsed(**changes)


def test_an_unknown_architecture_lists_the_families() -> None:
    """With the names to look for."""
    with pytest.raises(UnsupportedModel, match="BertModel is not supported; supported are Llama") as caught:
        family_of({"architectures": ["BertModel"]}, WHERE)
    assert known_families() in str(caught.value)
    for family in FAMILIES:
        assert all(name in known_families() for name in family.architectures)
    with pytest.raises(UnsupportedModel, match="and model_type 'x' alone is not enough") as caught:
        family_of({"model_type": "x"}, WHERE)
    assert str(caught.value).endswith(known_families())


def test_json_from_strangers(tmp_path: Path) -> None:
    """Missing, not JSON, not an object, nested without end."""
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        read_json(path)
    for raw, message in (
        (b"{", "it is no JSON"),
        (b"[]", "it holds no JSON object"),
        (b"[" * 10**6, "it is no JSON"),
    ):
        path.write_bytes(raw)
        with pytest.raises(BrokenModelFile, match=message):
            read_json(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rope_parameters": "x"}, "rope_parameters is 'x': an object belongs there"),
        ({"rope_parameters": [1]}, "rope_parameters is [1]"),
        ({"rope_scaling": 7}, "rope_scaling is 7"),
        ({"rope_parameters": {"full_attention": "x"}}, "rope_parameters.full_attention is 'x'"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": 3}}, "sliding_attention is 3"),
        ({"rope_scaling": {"rope_type": ["linear"], "factor": 2}}, "rope_type is ['linear']"),
        ({"quantization_config": "gptq"}, "quantization_config is 'gptq': an object belongs there"),
    ],
)
def test_what_should_be_an_object_and_is_none_is_refused(changed: dict[str, Any], says: str) -> None:
    """In one line, and not left out in silence."""
    with pytest.raises(BrokenModelFile) as refused:
        parsed(**changed)
    assert says in str(refused.value)
