"""Whose inputs compressed-tensors rounds, by hand."""

from typing import Any

import pytest

from models.activation_rounding import ActivationRounding

BYTES = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}


def settings(*groups: tuple[list[str], Any], ignore: Any = ("lm_head",)) -> dict[str, Any]:
    named = {
        f"group_{number}": {"targets": targets, "input_activations": inputs}
        for number, (targets, inputs) in enumerate(groups)
    }
    return {"config_groups": named, "ignore": list(ignore)}


def test_a_name_comes_before_a_pattern_and_that_before_a_class() -> None:
    found = ActivationRounding(
        settings(
            (["Linear"], BYTES),
            (["re:.*down_proj$"], None),
            (["model.layers.1.mlp.down_proj"], BYTES),
            ignore=["lm_head", "re:.*gate$"],
        )
    )
    assert found
    assert found.rounds("model.layers.0.mlp.up_proj")
    assert not found.rounds("model.layers.0.mlp.down_proj")
    assert found.rounds("model.layers.1.mlp.down_proj")
    assert not found.rounds("lm_head")
    assert not found.rounds("model.layers.0.mlp.gate")


def test_a_pattern_is_looked_for_at_the_beginning() -> None:
    found = ActivationRounding(settings((["re:mlp"], BYTES)))
    assert found.rounds("mlp.up_proj")
    assert not found.rounds("model.layers.0.mlp.up_proj")


@pytest.mark.parametrize(
    "inputs", [None, {}, "8", {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "int"}]
)
def test_nothing_is_rounded(inputs: Any) -> None:
    found = ActivationRounding(settings((["Linear"], inputs)))
    assert not found
    assert not found.rounds("model.layers.0.mlp.up_proj")


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"config_groups": []},
        {"config_groups": {"a": 1}},
        {"config_groups": {"a": {"targets": "Linear", "input_activations": BYTES}}},
        {"config_groups": {"a": {"targets": [1], "input_activations": BYTES}}, "ignore": 3},
        {"config_groups": {"a": {"targets": ["re:("], "input_activations": BYTES}}},
    ],
)
def test_what_makes_no_sense_rounds_nothing(broken: dict[str, Any]) -> None:
    assert not ActivationRounding(broken).rounds("model.layers.0.mlp.up_proj")
