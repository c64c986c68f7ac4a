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
