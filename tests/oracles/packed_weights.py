"""Weights of a quantized checkpoint, as models/packed.py reads them, in a model of transformers'."""

from pathlib import Path
from typing import Any


def take_weights(model: Any, folder: Path) -> None:
    """Put them into `model`, which has to have all of them and nothing else."""
    import torch

    from models.checkpoint import open_checkpoint

    with open_checkpoint(folder) as checkpoint:
        state = {
            name: torch.from_numpy(checkpoint.rows(name).reshape(tensor.shape).copy())
            for name, tensor in checkpoint.tensors.items()
        }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    model.tie_weights()
