"""The decoder on a real model: transformers' logits, from a checkpoint and from a GGUF file."""

from pathlib import Path

import pytest

from quantize.pipeline import Request, run
from quantize.plan import target_of
from tests.oracles.hf_models import SCRIPTS

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(3000)]


def test_smollm2_computes_what_it_does_in_transformers(smollm2_folder: Path, tmp_path: Path) -> None:
    """On a text of many scripts, to the rounding of float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from models.decoder import Decoder
    from models.weights import open_weights

    ids = torch.tensor([AutoTokenizer.from_pretrained(smollm2_folder)(SCRIPTS)["input_ids"][:256]])
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(ids).logits
    converted = run(Request(smollm2_folder, target_of("bf16"), tmp_path)).path
    for path in (smollm2_folder, converted):
        with open_weights(path) as weights:
            seen = Decoder(weights).forward(ids)
        assert (seen - expected).abs().max() < 1e-4 * expected.abs().max()
        assert torch.equal(seen.argmax(-1), expected.argmax(-1))
