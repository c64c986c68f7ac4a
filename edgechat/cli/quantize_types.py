"""`edgechat quantize`: which types the tensors of a GGUF file get."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgechat.errors import UsageError

if TYPE_CHECKING:
    from quantize.pipeline import Result
    from quantize.plan import Target
    from quantize.type_choice import Wishes

TYPES = (
    "f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, "
    "q3_k_l, q3_k_m, q3_k_s, iq3_m, iq3_s, iq3_xs, iq3_xxs, q2_k, q2_k_s, iq2_m, iq2_s, iq2_xs, iq2_xxs, "
    "iq1_m, iq1_s, mxfp4_moe (experts only, all else q8_0); for models that were trained so: tq2_0, tq1_0, "
    "q2_0, q1_0"
)

TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        help=f"GGUF: {TYPES}. Default: q4_k_m, or of a GPTQ, AWQ or INT8 checkpoint the type that it "
        "becomes without rounding.",
    ),
]
TensorTypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor-type",
        metavar="PATTERN=TYPE",
        help="GGUF: another type for the tensors whose names match, such as attn_v=q8_0 or "
        "'blk\\.[0-3]\\.ffn_down=q6_k'; again for more, the first that matches counts.",
    ),
]
OutputTypeOption = Annotated[
    str | None,
    typer.Option("--output-tensor-type", metavar="TYPE", help="GGUF: the type of the output matrix."),
]
EmbeddingTypeOption = Annotated[
    str | None,
    typer.Option("--token-embedding-type", metavar="TYPE", help="GGUF: the type of the token embedding."),
]
TargetSizeOption = Annotated[
    str | None,
    typer.Option(
        "--target-size",
        metavar="SIZE",
        help="GGUF: instead of --type, the best mix of types within 4GB or 700MB, by measured error.",
    ),
]
TargetBpwOption = Annotated[
    float | None,
    typer.Option("--target-bpw", metavar="BITS", help="GGUF: the same by bits per weight, such as 4.5."),
]


def wishes_of(
    tensor_types: list[str] | None,
    *,
    output_type: str | None,
    embedding_type: str | None,
    size: str | None,
    bpw: float | None,
) -> "Wishes":
    """What was asked for beside the file's type.

    Raises:
        UsageError: a size in two ways.
        BadRequest: there is no such type, or it is no size.
    """
    from quantize.budget import bpw_budget, size_budget
    from quantize.tensor_types import Part, override, part_override
    from quantize.type_choice import Wishes

    overrides = [override(text) for text in tensor_types or ()]
    if output_type is not None:
        overrides.append(part_override(Part.OUTPUT, output_type))
    if embedding_type is not None:
        overrides.append(part_override(Part.EMBEDDING, embedding_type))
    if size is not None and bpw is not None:
        raise UsageError("--target-size doesn't go with --target-bpw: give one of both")
    budget = size_budget(size) if size is not None else bpw_budget(bpw) if bpw is not None else None
    return Wishes(tuple(overrides), budget)


def refuse_for(to: str, wishes: "Wishes") -> None:
    """Refuse them where the result is no GGUF file.

    Raises:
        UsageError: with the first.
    """
    if wishes:
        raise UsageError(f"{_first(wishes)} doesn't go with --to {to}: it is for GGUF files")


def target_for(wishes: "Wishes", kind: str | None) -> "Target | None":
    """The type of the file; None: nobody asked for one.

    Raises:
        UsageError: a type beside a size.
        BadRequest: there is no such type, or the wishes don't go with it.
    """
    from quantize.plan import target_of

    if wishes.budget is not None:
        if kind is not None:
            raise UsageError(f"--type doesn't go with {wishes.budget.option}: the types are chosen")
        return wishes.budget.target
    if kind is None:
        return None
    target = target_of(kind)
    wishes.check(target)
    return replace(target, direct=None) if wishes else target


def _first(wishes: "Wishes") -> str:
    if wishes.overrides:
        return str(wishes.overrides[0].part)
    assert wishes.budget is not None
    return wishes.budget.option


def show_types(result: "Result") -> None:
    """A row for each type, where types were chosen."""
    from quantize.plan import human

    width = max(len(share.type) for share in result.types)
    rows = (
        f"  {share.type:{width}}  {share.n_tensors:5} tensors  {human(share.n_bytes):>8}"
        for share in result.types
    )
    print("\n".join(rows), file=sys.stderr, flush=True)


def types_record(result: "Result") -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {"type": share.type, "tensors": share.n_tensors, "bytes": share.n_bytes} for share in result.types
    ]
