"""Folded scales change no layer's output, in any family."""

from pathlib import Path

import pytest

from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE

pytestmark = pytest.mark.oracle

GROUPS = {
    "llama": ["input_layernorm", "post_attention_layernorm", "mlp.up_proj"],
    "llama with a head of keys for each": [
        "input_layernorm",
        "self_attn.v_proj",
        "post_attention_layernorm",
        "mlp.up_proj",
    ],
    "llama with biases": ["input_layernorm", "post_attention_layernorm", "mlp.up_proj"],
    "qwen3": ["input_layernorm", "post_attention_layernorm", "mlp.up_proj"],
    "qwen3 moe": [
        "input_layernorm",
        "post_attention_layernorm",
        *(f"mlp.experts.{expert}.up_proj" for expert in range(4)),
    ],
    "gemma2": ["input_layernorm", "pre_feedforward_layernorm", "mlp.up_proj"],
    "gemma3": ["input_layernorm", "pre_feedforward_layernorm", "mlp.up_proj"],
    "phi3": ["input_layernorm", "post_attention_layernorm", "mlp.gate_up_proj"],
    "olmo2": ["mlp.up_proj"],
}


@pytest.mark.parametrize("case", GROUPS)
def test_layers_compute_what_they_did(case: str, tmp_path: Path) -> None:
    import torch

    from models.decoder import DecoderLayer
    from models.weights import open_weights
    from quantize.methods.folding import can_fold, fold, fold_groups

    hf_models.save_model(tmp_path, CONVERTIBLE[case]())
    generator = torch.Generator().manual_seed(1)
    with open_weights(tmp_path) as weights:
        config = weights.config
        tensors = weights.layer(0)
        groups = fold_groups(config, 0)
        sources = [group.source for group in groups]
        assert [source for source in sources if "experts" not in source or int(source.split(".")[2]) < 4] == (
            GROUPS[case]
        )
        hidden = torch.randn(2, 12, config.hidden_size, generator=generator)
        expected = DecoderLayer(config, 0, dict(tensors)).forward(hidden, torch.arange(12))
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        for group in groups:
            assert can_fold(tensors, group)
            columns = tensors[f"{group.targets[0]}.weight"].shape[1]
            fold(tensors, group, torch.rand(columns, generator=generator) + 0.5)
        got = DecoderLayer(config, 0, tensors).forward(hidden, torch.arange(12))
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)
    read = {name for group in groups for name in group.targets}
    assert read
    assert all(not torch.equal(tensors[f"{name}.weight"], before[f"{name}.weight"]) for name in read)
