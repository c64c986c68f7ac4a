"""What each family refuses, and what it calls its tensors."""

from pathlib import Path
from typing import Any

import pytest

from models.errors import UnsupportedModel
from models.families import Change, family_of
from tests.oracles.raw_checkpoint import config, weights

WHERE = Path("config.json")


UNSET = "null"
"""Stands for a null in the file; None is a key that is not there."""


def checked(architecture: str, **changes: Any) -> Any:
    """The family and the config, checked."""
    raw = config(architectures=[architecture], **changes)
    raw |= {key: None for key, value in changes.items() if value == UNSET}
    family = family_of(raw, WHERE)
    model = family.read(raw, WHERE)
    family.check(model)
    return family, model


def test_a_llama_has_these_tensors() -> None:
    """Named on both sides; queries and keys are reordered, nothing else is."""
    family, model = checked("LlamaForCausalLM")
    rules = list(family.tensors(model, tied=True))
    assert {rule.source: rule.shape for rule in rules} == {name: t.shape for name, t in weights().items()}
    changed = {rule.target: rule.heads for rule in rules if rule.change is not Change.NONE}
    assert changed == {
        f"blk.{i}.attn_{letter}.weight": n for i in range(2) for letter, n in (("q", 4), ("k", 2))
    }
    assert [rule.target for rule in family.tensors(model, tied=False)][-1] == "output.weight"


LLAMA, QWEN2, GEMMA3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma3ForCausalLM"
QWEN3, MOE, GEMMA2 = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM"
PHI3, SMOLLM3, OLMO2 = "Phi3ForCausalLM", "SmolLM3ForCausalLM", "Olmo2ForCausalLM"
LLAMA3 = {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "hidden_act": "silu"}
GELU = {"hidden_act": None}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another activation": (LLAMA, {"hidden_act": "relu"}, "activation 'relu': llama.cpp computes silu"),
    "other heads": (QWEN2, {"head_dim": 32}, "whose heads .4 of 32. don't add up to hidden_size 64"),
    "both directions": (GEMMA3, {"use_bidirectional_attention": True, **GELU}, "can't generate text"),
    "soft caps": (GEMMA3, {"attn_logit_softcapping": 50.0, **GELU}, "soft-capped attention"),
    "Gemma with biases": (GEMMA3, {"attention_bias": True, **GELU}, "attention biases"),
    "Gemma with llama3 rope": (GEMMA3, {**LLAMA3, **GELU}, "llama3 rope scaling"),
    "a part of each head": (LLAMA, {"partial_rotary_factor": 0.5}, "a part of each head .* for Llama"),
    "llama3 rope": (QWEN2, LLAMA3, "a Qwen2 model with llama3 rope scaling"),
    "yarn unrounded": (QWEN2, YARN, "llama.cpp rounds"),
    "Qwen3 with biases": (QWEN3, {"attention_bias": True}, "a Qwen3 model with attention biases"),
    "no experts": (MOE, {}, "layers without experts"),
    "some layers without experts": (MOE, {**EXPERTS, "mlp_only_layers": [1]}, "layers without experts"),
    "experts' weights as they are": (MOE, {**EXPERTS, "norm_topk_prob": False}, "without norm_topk_prob"),
    "Gemma 2 with biases": (GEMMA2, {"attention_bias": True, **GELU}, "attention biases"),
    "Gemma 2 without caps": (GEMMA2, {"attn_logit_softcapping": UNSET, **GELU}, "without soft caps"),
    "Gemma 2 without a window": (GEMMA2, {"sliding_window": UNSET, **GELU}, "without a sliding window"),
    "Phi-3 with other heads": (PHI3, {"head_dim": 32}, "don't add up to hidden_size 64"),
    "Phi-3 with linear rope": (PHI3, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear rope"),
    "SmolLM3 with biases": (SMOLLM3, {"mlp_bias": True}, "a SmolLM3 model with biases"),
    "SmolLM3 with other positions": (SMOLLM3, {"no_rope_layers": [1, 0]}, "without positions"),
    "OLMo 2 with biases": (OLMO2, {"attention_bias": True}, "attention biases"),
    "OLMo 2 with other heads": (OLMO2, {"head_dim": 32}, "don't add up"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_would_compute_otherwise_is_refused(case: str) -> None:
    """Rather than converted into a model that answers nonsense."""
    architecture, changes, message = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=message):
        checked(architecture, **changes)


def test_a_window_that_is_switched_off_is_none() -> None:
    """Qwen2.5 lists a window that it doesn't use."""
    _, model = checked("Qwen2ForCausalLM", use_sliding_window=False, sliding_window=8, max_window_layers=1)
    assert model.sliding_window is None


def test_a_window_that_is_null_is_none() -> None:
    """Later Mistrals write null; a config that is silent means the first one."""
    _, later = checked("MistralForCausalLM", sliding_window=UNSET)
    _, first = checked("MistralForCausalLM")
    assert later.sliding_window is None
    assert first.sliding_window == 4096


def test_where_llama_cpp_has_no_window_the_context_ends_with_it() -> None:
    """So that what it computes is what the model was trained to; a person is told."""
    family, model = checked("MistralForCausalLM", sliding_window=8)
    assert family.metadata(model)["context_length"] == 8
    assert "its context is 8 tokens, not 128" in family.notes(model)[0]
    family, model = checked("Gemma2ForCausalLM", sliding_window=8, **GELU)
    assert family.metadata(model)["context_length"] == 128
    assert family.notes(model) == ()


def test_experts_are_stacked() -> None:
    """A tensor of the GGUF file for each kind, and a router in float32."""
    family, model = checked("Qwen3MoeForCausalLM", head_dim=16, **EXPERTS)
    rules = {rule.target: rule for rule in family.layer(model, 1)}
    assert rules["blk.1.ffn_gate_inp.weight"].exact
    down = rules["blk.1.ffn_down_exps.weight"]
    assert down.shape == (4, 64, 768)
    assert down.sources[3] == "model.layers.1.mlp.experts.3.down_proj.weight"


def test_the_output_matrix_is_where_llama_cpp_wants_it() -> None:
    """OLMo 2 always has one, Gemma 2 never."""
    family, model = checked("Olmo2ForCausalLM")
    last = list(family.tensors(model, tied=True))[-1]
    assert (last.source, last.target) == ("model.embed_tokens.weight", "output.weight")
    family, model = checked("Gemma2ForCausalLM", **GELU)
    with pytest.raises(UnsupportedModel, match="with an output matrix"):
        list(family.tensors(model, tied=False))
