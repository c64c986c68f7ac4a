"""Options that several commands have."""

from typing import Annotated, Literal

import typer

KVTypeOption = Annotated[
    Literal["f16", "q8_0", "q4_0"] | None,
    typer.Option("--kv-type", help="Type of the context's memory; smaller ones cost some quality."),
]

DraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft", metavar="MODEL|ngram|auto|off", help="What drafts tokens for the model to verify."
    ),
]
