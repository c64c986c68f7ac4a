"""What our own dequantized weights compute, in transformers' float32, and how close a reader comes to it."""

from pathlib import Path
from typing import Any

import torch

from models.checkpoint import open_checkpoint
from models.int8_matrix import Int8Matrix
from models.packed import Layout, PackedCheckpoint
from tests.oracles.packed_weights import take_weights

FACTORS = {torch.float16: 3.0, torch.bfloat16: 1.5}
"""A reader in such a type may be so many times as far off as the dense weights in it are."""


def dense(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model with the weights that models/packed.py reads."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    take_weights(model, folder)
    return model.to(dtype)


def tokens(folder: Path) -> torch.Tensor:
    """A text as the model's own tokens: int64 [1, 48]."""
    from tokenizers import Tokenizer

    text = (Path(__file__).parents[2] / "quantize" / "data" / "eval.txt").read_text()[:400]
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert len(ids) >= 48
    return torch.tensor([ids[:48]])


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """float32 [48, V]."""
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits[0]
    return found.float()


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The error's size relative to how much the logits differ among themselves."""
    spread = expected - expected.mean(-1, keepdim=True)
    return float((found - expected).norm() / spread.norm())


def matrices(folder: Path) -> dict[str, torch.Tensor]:
    """Each quantized matrix, dequantized: {"model.layers.0.mlp.up_proj": float32 [out, in], ...}."""
    with open_checkpoint(folder) as checkpoint:
        assert isinstance(checkpoint, PackedCheckpoint)
        return {
            name.removesuffix(".weight"): torch.from_numpy(checkpoint.rows(name).copy())
            for name in checkpoint.packed
        }


def with_rounded_inputs(folder: Path) -> set[str]:
    """The quantized modules that are not stored in W8A16, whose inputs are rounded."""
    with open_checkpoint(folder) as checkpoint:
        assert isinstance(checkpoint, PackedCheckpoint)
        return {one.module for one in checkpoint.packed.values() if one.layout is not Layout.PACKED}


def has_negative_scales(folder: Path) -> bool:
    """Whether any group's scale is below zero."""
    with open_checkpoint(folder) as checkpoint:
        assert isinstance(checkpoint, PackedCheckpoint)
        return any(
            bool((found.scales < 0).any())
            for name in checkpoint.packed
            if (found := checkpoint.matrix(name)) is not None and not isinstance(found, Int8Matrix)
        )


def rounded_inputs(model: Any, names: set[str]) -> None:
    """Have linear modules round their inputs to eight bits by token, as compressed-tensors does: the range
    is symmetric, and 127.5 steps wide on each side."""

    def rounded(module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (x,) = arguments
        step = (x.abs().amax(-1, keepdim=True) / 127.5).clamp(min=torch.finfo(x.dtype).tiny)
        return ((x / step).round().clamp(-128, 127) * step,)

    for name, module in model.named_modules():
        if name in names:
            module.register_forward_pre_hook(rounded)
