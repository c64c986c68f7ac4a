"""Rotary frequencies and rotation against transformers."""

from typing import Any

import pytest

from models.rope_config import Rope, RopeKind, RopeScaling
from tests.oracles.hf_configs import LINEAR, LLAMA3, YARN, build, longrope

pytestmark = pytest.mark.oracle

HEAD = 128
PARAMETERS: dict[str, tuple[dict[str, Any], RopeScaling]] = {
    "linear": (LINEAR, RopeScaling(RopeKind.LINEAR, 4.0)),
    "llama3": (LLAMA3, RopeScaling(RopeKind.LLAMA3, 8.0, 32)),
    "yarn": (YARN, RopeScaling(RopeKind.YARN, 4.0, 64)),
    "yarn of other speeds": (
        {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 0.9},
        RopeScaling(RopeKind.YARN, 4.0, 64, beta_fast=8.0, beta_slow=2.0, attention_factor=0.9),
    ),
    "yarn unrounded": (
        {**YARN, "truncate": False},
        RopeScaling(RopeKind.YARN, 4.0, 64, truncate=False),
    ),
    "longrope": (
        {**longrope(HEAD // 2, 64), "factor": 4.0},
        RopeScaling(
            RopeKind.LONGROPE,
            4.0,
            64,
            short_factors=tuple(longrope(HEAD // 2, 64)["short_factor"]),
            long_factors=tuple(longrope(HEAD // 2, 64)["long_factor"]),
        ),
    ),
}


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("length", [60, 5000])
def test_tables_are_those_of_transformers(kind: str, length: int) -> None:
    """Cosine and sine of each position, magnitude included."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from models.rope import Rotary

    parameters, scaling = PARAMETERS[kind]
    config = build("LlamaConfig", {"head_dim": HEAD, "rope_parameters": dict(parameters)})
    inverse, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
        config, torch.device("cpu"), seq_len=length
    )
    positions = torch.arange(length)
    cos, sin = Rotary(Rope(parameters["rope_theta"], scaling), HEAD).tables(positions)
    angles = positions[:, None].double() * inverse.double()
    # In float32 an angle of thousands of radians is known to some 1e-3.
    assert torch.allclose(cos.double(), angles.cos() * magnitude, atol=1e-3)
    assert torch.allclose(sin.double(), angles.sin() * magnitude, atol=1e-3)


def test_rotation_is_a_turn_of_complex_numbers() -> None:
    """Pair (i, i + n/2) is turned by position * theta^(-2i/n); the rest of the head stays."""
    import torch

    from models.rope import Rotary

    rotary = Rotary(Rope(100.0, None, 0.75), 16)
    x = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(1))
    turned = rotary.rotate(x, rotary.tables(torch.arange(5)))
    pairs = torch.complex(x[..., :6].double(), x[..., 6:12].double())
    angles = torch.arange(5.0).double()[:, None] * 100.0 ** (-torch.arange(6).double() / 6)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    assert torch.allclose(turned[..., :6].double(), expected.real, atol=1e-5)
    assert torch.allclose(turned[..., 6:12].double(), expected.imag, atol=1e-5)
    assert torch.equal(turned[..., 12:], x[..., 12:])
