"""How large a model is, in the terms that people compare models by, and sizes as people write them."""

import re
from collections.abc import Iterable
from typing import Protocol

_DECIMAL = {unit: 1000**power for power, unit in enumerate("kmgt", 1)}
_BINARY = {unit: 1024**power for power, unit in enumerate("kmgt", 1)}
_BARE = re.compile(r"\d{1,15}(\.\d{1,15})?")
_LEAST = 10**6
"""Bytes: what is less without a unit was meant in another."""
_MANY_GB = 100
_AMOUNT = re.compile(r"(?P<number>\d{1,15}(\.\d{1,15})?)\s*((?P<unit>[kmgt])(?P<binary>i?))?b?")


class Sized(Protocol):
    """Anything that is stored."""

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        ...


def bits_per_weight(stored: Iterable[Sized], n_weights: int) -> float:
    """How many bits a weight takes: scales and all that belongs to it counted, headers and vocabulary not.

    Args:
        stored: all tensors of a model, as they are stored.
        n_weights: of the model.
    """
    return 8 * sum(one.n_bytes for one in stored) / n_weights if n_weights else 0.0


def amount(text: str, *, binary: bool = False) -> int | None:
    """Bytes: "4GB", "700 MB", "3.5GiB", "1500000000"; None: it is no amount, or none at all.

    Args:
        text: in any case.
        binary: "4G" and "4GB" are 4 GiB too, as where systemd and docker limit memory.
    """
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None:
        return None
    units = _BINARY if binary or match["binary"] else _DECIMAL
    return int(float(match["number"]) * units.get(match["unit"], 1)) or None


def lacks_unit(text: str) -> str:
    """What a number means that lacks its unit: "4GB" for "4", "700MB" for "700"; else ""."""
    bare = text.strip()
    if not _BARE.fullmatch(bare) or not 0 < float(bare) < _LEAST:
        return ""
    return f"{bare}GB" if float(bare) < _MANY_GB else f"{bare}MB"
