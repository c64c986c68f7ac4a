"""A layer in parts is the layer: for each family, to the bit; and it stops where it says."""

from pathlib import Path

import pytest

from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("case", CONVERTIBLE)
def test_the_parts_make_the_whole(case: str, tmp_path: Path) -> None:
    import torch

    from models.config import Norms
    from models.decoder import Decoder
    from models.weights import open_weights
    from quantize.stages import Stages

    folder = tmp_path / "model"
    config = CONVERTIBLE[case]()
    config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3)
    hf_models.save_model(folder, config)
    positions = torch.arange(24)
    with open_weights(folder) as weights, torch.no_grad():
        decoder = Decoder(weights)
        hidden = decoder.embed(torch.arange(48).reshape(2, 24))
        for layer in decoder.layers():
            seen: dict[str, torch.Tensor] = {}
            with layer.observed(seen.__setitem__):
                expected = layer.forward(hidden, positions)
            stages = Stages(layer, positions)
            first, last = stages.attention_groups
            before = hidden.clone()
            assert torch.equal(stages.attention_input(hidden), seen[first[0]])
            mixed = stages.mixed(hidden)
            assert torch.equal(mixed, seen[last[0]])
            costs = stages.costs(last[0])
            assert (costs is None) == (layer.config.layout.norms is not Norms.BEFORE)
            if costs is not None:
                assert costs(hidden, mixed).shape == (2, 24)
            between = stages.after_attention(hidden, mixed)
            if stages.has_experts:
                found = stages.after_experts(between)
            else:
                first, last = stages.mlp_groups
                assert torch.equal(stages.mlp_input(between), seen[first[0]])
                gated = stages.gated(between)
                assert torch.equal(gated, seen[last[0]])
                found = stages.after_gated(between, gated)
            assert torch.equal(found, expected)
            assert torch.equal(hidden, before)
            hidden = expected
