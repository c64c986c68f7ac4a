"""A decoder's config from a GGUF file."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.config import RopeKind
from models.errors import UnsupportedModel
from models.gguf import read_header
from models.gguf_config import config_of, family_named
from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE


def test_the_starter_model(starter_gguf: Path) -> None:
    """As its makers published it."""
    header = read_header(starter_gguf)
    family = family_named(header)
    model = config_of(header, family)
    assert family.name == "Llama"
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.head_dim) == (30, 9, 3, 64)
    assert (model.hidden_size, model.intermediate_size, model.vocab_size) == (576, 1536, 49152)
    assert (model.rope.theta, model.rope.scaling, model.n_ctx) == (100000.0, None, 8192)
    assert model.tied
    assert model.activation == "silu"


@pytest.mark.oracle
@pytest.mark.parametrize("case", CONVERTIBLE)
def test_a_converted_model_says_what_its_checkpoint_said(case: str, tmp_path: Path) -> None:
    """Shape, quirks and positions, as far as a GGUF file can say them."""
    from models.families import family_of
    from models.json_file import read_json
    from quantize.pipeline import Request, run
    from quantize.plan import target_of

    config = CONVERTIBLE[case]()
    config.vocab_size = hf_models.save_bpe(tmp_path / "model", hf_models.LLAMA3)
    hf_models.save_model(tmp_path / "model", config)
    header = read_header(run(Request(tmp_path / "model", target_of("f16"), tmp_path / "out.gguf")).path)
    raw = read_json(tmp_path / "model" / "config.json")
    expected = family_of(raw, tmp_path).read(raw, tmp_path)
    family = family_named(header)
    model = config_of(header, family)
    for name in (
        "vocab_size", "hidden_size", "intermediate_size", "n_layers", "n_heads", "n_kv_heads", "head_dim",
        "n_ctx", "activation", "sliding_layers", "rotary_layers", "qkv_bias", "mlp_bias", "experts",
        "expert_layers", "rotary_dim",
    ):  # fmt: skip
        assert getattr(model, name) == getattr(expected, name), name
    # A Mistral is a Llama there, and keys of config.json that are not read are no matter.
    assert replace(model.layout, ignored=frozenset()) == replace(expected.layout, ignored=frozenset())
    for name in ("norm_eps", "embedding_scale", "residual_multiplier", "logits_divisor"):
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    assert model.rope.theta == pytest.approx(expected.rope.theta)
    ours, theirs = model.rope.scaling, expected.rope.scaling
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert ours.magnitude == pytest.approx(theirs.magnitude)
        if theirs.kind is not RopeKind.LLAMA3:  # which is a list of factors then
            assert ours.kind is theirs.kind
            assert ours.original_context == theirs.original_context


def test_an_architecture_without_a_family() -> None:
    """Lists those that have one."""

    class Header:
        path = Path("x.gguf")
        architecture = "mamba"

    with pytest.raises(UnsupportedModel, match="architecture 'mamba': supported are gemma2, gemma3,"):
        family_named(Header())  # type: ignore[arg-type]
