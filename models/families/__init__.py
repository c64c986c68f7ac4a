"""The families of models that are known here, one module each."""

from collections.abc import Mapping
from typing import Any

from models.errors import UnsupportedModel
from models.families.base import Change, Family, TensorRule
from models.families.gemma2 import Gemma2
from models.families.gemma3 import Gemma3
from models.families.granite import Granite
from models.families.llama import Llama, Mistral
from models.families.olmo2 import Olmo2
from models.families.phi3 import Phi3
from models.families.qwen2 import Qwen2
from models.families.qwen3 import Qwen3, Qwen3Moe
from models.families.smollm3 import SmolLM3

__all__ = ["FAMILIES", "Change", "Family", "TensorRule", "family_of", "known_families"]

FAMILIES: tuple[Family, ...] = (
    Llama(),
    Mistral(),
    Qwen2(),
    Qwen3(),
    Qwen3Moe(),
    Gemma2(),
    Gemma3(),
    Phi3(),
    SmolLM3(),
    Olmo2(),
    Granite(),
)


def known_families() -> str:
    """The families, for a message: "Llama (LlamaForCausalLM), ..."."""
    return ", ".join(f"{family.name} ({' or '.join(family.architectures)})" for family in FAMILIES)


def family_of(raw: Mapping[str, Any], where: object) -> Family:
    """The family of a checkpoint, from its config.json.

    Raises:
        UnsupportedModel: none of those known here.
    """
    listed = raw.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    for family in FAMILIES:
        if any(name in family.architectures for name in names):
            return family
    if not names:
        raise UnsupportedModel(
            f'{where} has no "architectures", and model_type {raw.get("model_type")!r} alone is not enough: '
            f"add the one in brackets, where the model is of {known_families()}"
        )
    raise UnsupportedModel(f"{where}: {', '.join(names)} is not supported; supported are {known_families()}")
