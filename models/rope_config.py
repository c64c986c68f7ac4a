"""Rotary positions as config.json describes them.

transformers has written these numbers under several names over the years (`rope_theta` and `rope_scaling`
until version 4, `rope_parameters` since 5); both forms are read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from models.config_reader import Reader
from models.errors import UnsupportedModel


class RopeKind(StrEnum):
    """How the rotary frequencies were stretched to a longer context."""

    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The stretch, and the numbers that its kind needs."""

    kind: RopeKind
    factor: float
    original_context: int = 0
    """Tokens that the model was first trained on (llama3, yarn, longrope)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Yarn rounds the borders of its ramp to whole frequencies."""
    attention_factor: float | None = None
    """What cosine and sine are multiplied by; None: what the kind derives from its factor."""
    short_factors: tuple[float, ...] = ()
    """Longrope: what each frequency is divided by in texts up to `original_context`."""
    long_factors: tuple[float, ...] = ()
    """The same, in longer ones."""

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        if self.kind is RopeKind.YARN:
            return 0.1 * math.log(self.factor) + 1
        if self.kind is RopeKind.LONGROPE:
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context))
        return 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: frequency i is theta^(-2i/n), n being the numbers of a head that are rotated."""

    theta: float
    scaling: RopeScaling | None = None
    fraction: float = 1.0
    """Of each head, its first part, that is rotated."""

    def rotated(self, head_dim: int) -> int:
        """How many numbers of a head are rotated."""
        return int(head_dim * self.fraction + 1e-6)


def read_ropes(reader: Reader, head_dim: int) -> tuple[Rope, Rope | None]:
    """The rope of the layers that see all, and that of those with a window, where they have their own.

    Raises:
        BrokenModelFile: a number is missing or makes no sense.
        UnsupportedModel: a scaling that is not supported.
    """
    raw = reader.raw
    for name in ("rope_parameters", "rope_scaling"):
        _check_object(reader, name, raw.get(name))
    parameters = raw.get("rope_parameters")
    for name in ("full_attention", "sliding_attention"):
        _check_object(reader, f"rope_parameters.{name}", (parameters or {}).get(name))
    if parameters is not None and parameters.get("full_attention") is not None:
        local = parameters.get("sliding_attention")
        full = {"rope_theta": raw.get("rope_theta"), **parameters["full_attention"]}
        return (
            _rope(reader, full, head_dim),
            _rope(reader, local, head_dim) if isinstance(local, dict) else None,
        )
    scaling = parameters if isinstance(parameters, dict) else raw.get("rope_scaling")
    both = {
        "rope_theta": raw.get("rope_theta"),
        "partial_rotary_factor": raw.get("partial_rotary_factor", 1.0),
        **(scaling or {}),
    }
    local_theta = raw.get("rope_local_base_freq")
    local_rope = _rope(reader, {"rope_theta": local_theta}, head_dim) if local_theta else None
    return _rope(reader, both, head_dim), local_rope


def _check_object(reader: Reader, name: str, value: object) -> None:
    """Refuse what is neither an object nor missing.

    Raises:
        BrokenModelFile: it is.
    """
    if value is not None and not isinstance(value, dict):
        raise reader.broken(f"{name} is {repr(value)[:80]}: an object belongs there")


def _rope(reader: Reader, raw: Mapping[str, Any], head_dim: int) -> Rope:
    part = Reader({key: value for key, value in raw.items() if value is not None}, reader.where)
    theta = part.number("rope_theta", 0.0, 1e15, 10_000.0)
    fraction = part.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    rotated = Rope(theta, None, fraction).rotated(head_dim)
    if rotated < 2 or rotated % 2:
        raise reader.broken(f"rotary positions on {rotated} of a head's {head_dim} numbers: they need pairs")
    kind = part.raw.get("rope_type", part.raw.get("type", "default"))
    if not isinstance(kind, str):
        raise reader.broken(f"rope_type is {repr(kind)[:80]}: a name belongs there")
    # What Phi-3 called "su" before it had a name, and at times "yarn".
    if kind == "su" or (kind == "yarn" and "long_factor" in part.raw):
        kind = RopeKind.LONGROPE
    if kind == "default":
        return Rope(theta, None, fraction)
    if kind not in set(RopeKind):
        known = ", ".join(RopeKind)
        raise UnsupportedModel(f"{reader.where}: rope scaling {kind!r} is not supported: {known} are")
    return Rope(theta, _scaling(reader, part, RopeKind(kind), rotated // 2), fraction)


def _scaling(reader: Reader, part: Reader, kind: RopeKind, n_frequencies: int) -> RopeScaling:
    context = part.raw.get(
        "original_max_position_embeddings", reader.raw.get("original_max_position_embeddings")
    )
    if context is None and kind is not RopeKind.LINEAR:
        context = reader.integer("max_position_embeddings", 2**31 - 1)
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 2):
        raise reader.broken(f"original_max_position_embeddings is {context!r}: a whole number belongs there")
    stretched = None
    if kind in {RopeKind.LONGROPE, RopeKind.YARN} and context:
        stretched = max(1.0, reader.integer("max_position_embeddings", 2**31 - 1) / context)
    factor = part.number("factor", 0.0, 1e6, stretched)
    n_factors = n_frequencies if kind is RopeKind.LONGROPE else 0
    scaling = RopeScaling(
        kind=kind,
        factor=factor,
        original_context=context or 0,
        low_freq_factor=part.number("low_freq_factor", 0.0, 1e6, 1.0),
        high_freq_factor=part.number("high_freq_factor", 0.0, 1e6, 4.0),
        beta_fast=part.number("beta_fast", 0.0, 1e6, 32.0),
        beta_slow=part.number("beta_slow", 0.0, 1e6, 1.0),
        truncate=part.raw.get("truncate") is not False,
        attention_factor=_attention_factor(part, kind, factor),
        short_factors=part.numbers("short_factor", n_factors) if n_factors else (),
        long_factors=part.numbers("long_factor", n_factors) if n_factors else (),
    )
    if kind is RopeKind.LLAMA3 and scaling.low_freq_factor >= scaling.high_freq_factor:
        raise reader.broken("rope scaling's low_freq_factor must be below its high_freq_factor")
    return scaling


def _attention_factor(part: Reader, kind: RopeKind, factor: float) -> float | None:
    """Given as it is, or for yarn as the quotient of two (`mscale`, `mscale_all_dim`)."""
    given = part.optional("attention_factor")
    one, all_dims = part.raw.get("mscale"), part.raw.get("mscale_all_dim")
    if given is not None or kind is not RopeKind.YARN or not (one and all_dims) or factor <= 1:
        return given
    first, second = part.number("mscale", 0.0, 1e3), part.number("mscale_all_dim", 0.0, 1e3)
    return (0.1 * first * math.log(factor) + 1) / (0.1 * second * math.log(factor) + 1)


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """What each rotary frequency is divided by under "llama3" scaling: head_dim/2 numbers from 1 to `factor`.

    Wavelengths under original_context/high_freq_factor stay, those over original_context/low_freq_factor are
    stretched by `factor`, and between them the frequency is interpolated (as Meta published for Llama 3.1).
    """
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        if wavelength < scaling.original_context / scaling.high_freq_factor:
            factors.append(1.0)
        elif wavelength > scaling.original_context / scaling.low_freq_factor:
            factors.append(scaling.factor)
        else:
            smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return factors


def yarn_factors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """What each rotary frequency is divided by under "yarn": from 1 for the fast ones to `factor`.

    Between the frequencies that turn `beta_fast` and `beta_slow` times within the original context, the
    weight of the stretched one rises linearly (Peng et al. 2023, section 3.2).
    """

    def index(turns: float) -> float:
        return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    factors = []
    for i in range(head_dim // 2):
        stretched = min(max((i - low) / span, 0.0), 1.0)
        factors.append(1 / (stretched / scaling.factor + 1 - stretched))
    return factors
