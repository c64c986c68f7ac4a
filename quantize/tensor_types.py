"""Which type single tensors of a GGUF file shall have, as a person says it: `--tensor-type attn_v=q8_0`.

Patterns are searched for in the tensors' names, in any case, and the first that matches counts: as in
llama.cpp's `llama-quantize --tensor-type`. They are resolved here to whole names, so that a pattern which
matches nothing, or a type that can't be, is said before anything is read.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from models.ggml_types import BLOCKS, DENSE, GGMLType
from quantize.errors import BadRequest
from quantize.formats.gguf import OutputTensor

TYPES: dict[str, GGMLType] = {
    kind.name.lower(): kind
    for kind in (
        *DENSE,
        GGMLType.Q8_0,
        GGMLType.Q6_K,
        GGMLType.Q5_K,
        GGMLType.Q5_1,
        GGMLType.Q5_0,
        GGMLType.Q4_K,
        GGMLType.Q4_1,
        GGMLType.Q4_0,
        GGMLType.IQ4_NL,
        GGMLType.IQ4_XS,
        GGMLType.Q3_K,
        GGMLType.IQ3_S,
        GGMLType.IQ3_XXS,
        GGMLType.Q2_K,
        GGMLType.IQ2_S,
        GGMLType.IQ2_XS,
        GGMLType.IQ2_XXS,
        GGMLType.IQ1_M,
        GGMLType.IQ1_S,
        GGMLType.TQ2_0,
        GGMLType.TQ1_0,
        GGMLType.MXFP4,
        GGMLType.NVFP4,
        GGMLType.Q2_0,
        GGMLType.Q1_0,
    )
}
"""What llama.cpp can make of a tensor, by name; the others exist for the time of a computation only."""

NEED_IMATRIX = frozenset(
    {
        GGMLType.IQ1_S,
        GGMLType.IQ1_M,
        GGMLType.IQ2_XXS,
        GGMLType.IQ2_XS,
        GGMLType.IQ2_S,
        GGMLType.IQ3_XXS,
    }
)
"""Garbage without an importance matrix: llama.cpp refuses, or aborts."""

NO_FALLBACK = frozenset({GGMLType.Q1_0, GGMLType.NVFP4})
"""Types for which llama.cpp knows no other where a row does not fill their blocks."""

OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
EMBEDDINGS = (EMBEDDING, "per_layer_token_embd.weight")

SHOWN = 6


class Part(StrEnum):
    """Which tensors are meant."""

    PATTERN = "--tensor-type"
    OUTPUT = "--output-tensor-type"
    """The output matrix: the embedding, where the model has no other."""
    EMBEDDING = "--token-embedding-type"


@dataclass(frozen=True, slots=True)
class Override:
    """A type for some tensors."""

    part: Part
    type: GGMLType
    pattern: str = ""

    @property
    def text(self) -> str:
        """As the person gave it."""
        pattern = f"{self.pattern}=" if self.part is Part.PATTERN else ""
        return f"{self.part} {pattern}{self.type.name.lower()}"


def override(text: str) -> Override:
    """`--tensor-type PATTERN=TYPE`.

    Raises:
        BadRequest: it is not of that form, the pattern is none, or there is no such type.
    """
    pattern, equals, name = text.rpartition("=")
    pattern = pattern.strip()
    if not equals or not pattern or not name.strip():
        raise BadRequest(f"--tensor-type {text!r}: give a pattern and a type, such as attn_v=q8_0")
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadRequest(f"--tensor-type {text!r}: {pattern!r} is no regular expression: {error}") from None
    return Override(Part.PATTERN, tensor_type(name, str(Part.PATTERN)), pattern)


def part_override(part: Part, name: str) -> Override:
    """`--output-tensor-type TYPE` or `--token-embedding-type TYPE`.

    Raises:
        BadRequest: there is no such type.
    """
    return Override(part, tensor_type(name, str(part)))


def tensor_type(name: str, option: str) -> GGMLType:
    """A tensor's type by its name, as people write it.

    Raises:
        BadRequest: there is none of that name.
    """
    plain = name.strip().lower().replace("-", "_")
    found = TYPES.get(plain)
    if found is not None:
        return found
    shorter = re.sub(r"_(s|m|l|xl)$", "", plain)
    if shorter in TYPES:
        raise BadRequest(
            f"{option} {name.strip()}: that is a mix for whole files (--type); a tensor's is {shorter}"
        )
    raise BadRequest(f"{option}: there is no type {name.strip()!r}: give one of {', '.join(TYPES)}")


Weighted = Callable[[str], bool]
"""Whether the importance matrix knows a tensor."""


def resolve(
    overrides: Sequence[Override],
    tensors: Mapping[str, OutputTensor],
    quantized: frozenset[str],
    weighted: Weighted,
) -> dict[str, GGMLType]:
    """The type of each tensor that is spoken of, by its name.

    Args:
        overrides: in order; the shortcuts go before the patterns, as in llama-quantize.
        tensors: all of the file.
        quantized: those that llama.cpp quantizes; it leaves norms and some small matrices as they are.
        weighted: whether there are importance weights for a tensor.

    Raises:
        BadRequest: a pattern matches nothing that is quantized, or a type can't be for a tensor.
    """
    ordered = sorted(overrides, key=lambda one: one.part is Part.PATTERN)
    chosen: dict[str, GGMLType] = {}
    for one in ordered:
        matched = _matched(one, tensors)
        names = [name for name in matched if name in quantized]
        if not names:
            raise BadRequest(_matches_nothing(one, matched, quantized))
        for name in names:
            if name not in chosen:
                _check(one, tensors[name], weighted)
                chosen[name] = one.type
    return chosen


def _matched(one: Override, tensors: Mapping[str, OutputTensor]) -> list[str]:
    if one.part is Part.OUTPUT:
        return [OUTPUT if OUTPUT in tensors else EMBEDDING]
    if one.part is Part.EMBEDDING:
        return [name for name in EMBEDDINGS if name in tensors]
    pattern = re.compile(one.pattern, re.IGNORECASE)
    return [name for name in tensors if pattern.search(name)]


def _matches_nothing(one: Override, matched: Sequence[str], quantized: frozenset[str]) -> str:
    if matched:
        what = matched[0] if len(matched) == 1 else f"{matched[0]} and {len(matched) - 1} more"
        return f"{one.text}: {what} is not quantized: llama.cpp leaves such tensors as they are"
    kinds = sorted({kind_of(name) for name in quantized})
    return f"{one.text} matches no tensor: there are {', '.join(kinds)}"


def _check(one: Override, tensor: OutputTensor, weighted: Weighted) -> None:
    if one.type in NEED_IMATRIX and not weighted(tensor.name):
        raise BadRequest(
            f"{one.text}: that type needs an importance matrix, and there is none of {tensor.name}"
        )
    block = BLOCKS[one.type].elements
    if one.type in NO_FALLBACK and tensor.shape[-1] % block:
        raise BadRequest(
            f"{one.text}: {tensor.name} has rows of {tensor.shape[-1]}, which blocks of {block} don't fill"
        )


def kind_of(name: str) -> str:
    """A tensor's name without its layer's number: "attn_q.weight"."""
    return re.sub(r"^blk\.\d+\.", "", name)


def fallbacks(wanted: Mapping[str, GGMLType], became: Mapping[str, GGMLType]) -> tuple[str, ...]:
    """What to say of tensors that could not have the type that was asked for.

    Args:
        wanted: by name.
        became: the types of the result's tensors.
    """
    odd = [(name, kind, became[name]) for name, kind in wanted.items() if became.get(name, kind) is not kind]
    shown = [
        f"{name} became {got.name} ({kind.name} needs rows of {BLOCKS[kind].elements})"
        for name, kind, got in odd[:SHOWN]
    ]
    if len(odd) > SHOWN:
        shown.append(f"{len(odd) - SHOWN} more likewise")
    return (", ".join(shown),) if shown else ()
