"""The decoder computes what transformers does, for every family and quirk."""

from pathlib import Path

import numpy as np
import pytest

from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE, OTHER

pytestmark = pytest.mark.oracle

CASES = {**CONVERTIBLE, **OTHER}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    """In float32, to rounding, over more positions than windows and first contexts have."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    torch.set_num_threads(1)
    config = CASES[case]()
    config._attn_implementation = "eager"  # the other ones leave soft caps out
    model = hf_models.save_model(tmp_path, config)
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (2, 100))
    with torch.no_grad():
        expected = model(torch.tensor(ids)).logits
    with open_weights(tmp_path) as weights:
        seen = Decoder(weights).forward(torch.tensor(ids))
    scale = expected.abs().max()
    assert scale > 1, "a model this flat proves nothing"
    assert (seen - expected).abs().max() < 2e-5 * scale


STRAY = {
    "llama": {"sliding_window": 8},
    "mistral with a window": {"max_window_layers": 2, "attention_bias": True},
    "qwen2": {"attention_bias": True, "mlp_bias": True},
    "qwen3": {"mlp_bias": True},
    "qwen3 moe in every second layer": {"max_window_layers": 3},
    "phi3 with a window": {"layer_types": ["full_attention"] * 3, "use_sliding_window": False},
    "olmo2": {"sliding_window": 8},
    "granite": {"sliding_window": 8},
}


@pytest.mark.parametrize("case", STRAY)
def test_what_transformers_does_not_look_at_changes_nothing(case: str, tmp_path: Path) -> None:
    """Checkpoints carry keys along that their class never reads."""
    import json

    import torch
    from transformers import AutoModelForCausalLM

    from models.decoder import Decoder
    from models.weights import open_weights

    torch.set_num_threads(1)
    hf_models.save_model(tmp_path, CASES[case]())
    where = tmp_path / "config.json"
    where.write_text(json.dumps({**json.loads(where.read_text()), **STRAY[case]}))
    ids = torch.tensor(np.random.default_rng(1).integers(0, 96, (1, 60)))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    with open_weights(tmp_path) as weights:
        seen = Decoder(weights).forward(ids)
    assert (seen - expected).abs().max() < 2e-5 * expected.abs().max()
