"""What each family refuses, and what it calls its tensors."""

from pathlib import Path
from typing import Any

import pytest

from models.config import parse
from models.errors import UnsupportedModel
from models.families import Change, family_of
from tests.oracles.raw_checkpoint import config, weights

WHERE = Path("config.json")


def checked(architecture: str, **changes: Any) -> Any:
    """The family and the config, checked."""
    raw = config(architectures=[architecture], **changes)
    family = family_of(raw, WHERE)
    model = parse(raw, family.defaults, WHERE)
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
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
LLAMA3 = {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}
GELU = {"hidden_act": None}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another activation": (LLAMA, {"hidden_act": "relu"}, "activation 'relu': llama.cpp computes silu"),
    "other heads": (QWEN2, {"head_dim": 32}, "whose heads .4 of 32. don't add up to hidden_size 64"),
    "a window": (QWEN2, WINDOW, "a Qwen2 model with a sliding window"),
    "both directions": (GEMMA3, {"use_bidirectional_attention": True, **GELU}, "can't generate text"),
    "soft caps": (GEMMA3, {"attn_logit_softcapping": 50.0, **GELU}, "soft-capped attention"),
    "Gemma with biases": (GEMMA3, {"attention_bias": True, **GELU}, "attention biases"),
    "Gemma with llama3 rope": (GEMMA3, {**LLAMA3, **GELU}, "llama3 rope scaling"),
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
