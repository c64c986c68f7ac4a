"""What a folder says of its quantization, and whether that is read here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.config import READ_BACK
from models.errors import UnsupportedModel
from models.json_file import optional_json

FORMATS = frozenset(
    {"dense", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision"}
)
"""Of compressed-tensors: not those that are sparse, nor those of four-bit floats."""


def quantization(folder: Path) -> dict[str, Any]:
    """What the folder says of its quantization, {} if nothing: in config.json, or as AutoGPTQ and AutoAWQ
    once had it, in a file of its own."""
    config = optional_json(folder / "config.json")
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(place.get(key), dict) and place[key]:
                return {**place[key]}
    old = optional_json(folder / "quantize_config.json")
    if old:
        return {"quant_method": "gptq", **old}
    old = optional_json(folder / "quant_config.json")
    if "w_bit" in old:
        return {"quant_method": "awq", **old}
    return {}


def check_method(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a quantization that is not read here.

    Raises:
        UnsupportedModel: with what it is.
    """
    method = settings.get("quant_method", "compressed-tensors" if "config_groups" in settings else "?")
    if method not in READ_BACK:
        raise UnsupportedModel(
            f"{folder}: the checkpoint is quantized already ({method}): give the unquantized one"
        )
    what = None
    if method == "gptq":
        what = _unread_gptq(settings)
    elif method == "awq" and format_of(settings, "gemm") != "gemm":
        what = f"version {format_of(settings, 'gemm')}"
    elif method == "compressed-tensors":
        named = [settings.get("format"), *(group.get("format") for group in _groups(settings))]
        what = next((f"format {name}" for name in named if name is not None and name not in FORMATS), None)
    if what is not None:
        raise UnsupportedModel(f"{folder}: {method} with {what} is not read here: get another export of it")


def _unread_gptq(settings: Mapping[str, Any]) -> str | None:
    """What there is in a GPTQ configuration that is not read here."""
    form, size = format_of(settings, "gptq"), settings.get("group_size", -1)
    if form not in {"gptq", "gptq_v2"}:
        return f"checkpoint_format {form}"
    if settings.get("is_marlin_format"):
        return "Marlin's order of weights"
    if settings.get("pack_dtype", "int32") != "int32":
        return f"pack_dtype {settings['pack_dtype']}"
    if not isinstance(size, int) or (size != -1 and size < 1):
        return f"group_size {size!r}"
    return None


def format_of(settings: Mapping[str, Any], usual: str) -> str:
    """How matrices are laid out: AutoGPTQ says checkpoint_format, AutoAWQ version, GPTQModel format."""
    names = ("checkpoint_format", "version", "format")
    return next((str(settings[name]).lower() for name in names if settings.get(name) is not None), usual)


def _groups(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """compressed-tensors' groups of modules."""
    groups = settings.get("config_groups")
    return [one for one in groups.values() if isinstance(one, dict)] if isinstance(groups, dict) else []
