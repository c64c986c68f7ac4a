"""Which matrices of a compressed-tensors checkpoint have their inputs rounded to eight bits as they run."""

import re
from collections.abc import Mapping
from typing import Any


class ActivationRounding:
    """What a checkpoint's configuration says of its linear modules' inputs.

    A module is in the group that has its name as a target; else in one with a pattern ("re:...") that its
    name begins with; else in one that has its class, "Linear". That is compressed-tensors' order.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings`: config.json's "quantization_config"; anything else in its place rounds nothing."""
        groups = settings.get("config_groups")
        found = [one for one in groups.values() if isinstance(one, dict)] if isinstance(groups, dict) else []
        self._rounds = {target: _to_bytes(group) for group in found for target in _texts(group, "targets")}
        self._ignored = _texts(settings, "ignore")

    def __bool__(self) -> bool:
        """Whether any inputs are rounded."""
        return any(self._rounds.values())

    def rounds(self, module: str) -> bool:
        """Whether the inputs of a linear module of that name, such as "model.layers.0.mlp.up_proj", are."""
        if not self or any(_is_of(module, target) for target in self._ignored):
            return False
        for target in sorted(self._rounds, key=lambda target: (target.startswith("re:"), target)):
            if _is_of(module, target):
                return self._rounds[target]
        return self._rounds.get("Linear", False)


def _is_of(module: str, target: str) -> bool:
    if not target.startswith("re:"):
        return module == target
    try:
        return re.match(target.removeprefix("re:"), module) is not None
    except re.error:
        return False


def _texts(settings: Mapping[str, Any], key: str) -> list[str]:
    values = settings.get(key)
    return [one for one in values if isinstance(one, str)] if isinstance(values, list) else []


def _to_bytes(group: Mapping[str, Any]) -> bool:
    inputs = group.get("input_activations")
    return isinstance(inputs, dict) and inputs.get("num_bits") == 8 and inputs.get("type") == "int"
