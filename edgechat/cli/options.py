"""Options that several commands have, each written once."""

from typing import Annotated, Literal

import typer

AsJsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, when it is done.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]

ContextOption = Annotated[
    int | None, typer.Option("--ctx", min=0, max=2**24, help="Tokens of context; 0: automatic.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=0, max=512, help="Threads; 0: automatic.")]
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
SummarizeOption = Annotated[
    bool | None,
    typer.Option(
        "--summarize/--no-summarize",
        help="When the context is full, the model sums up what leaves it, and goes on with that.",
        show_default=False,
    ),
]
GPULayersOption = Annotated[
    int | None, typer.Option("--gpu-layers", min=-1, max=2**16, help="Layers on the GPU; -1: all that fit.")
]

MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", min=0, max=2**31, help="Longest answer in tokens; 0: no limit."),
]
TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", "-t", min=0, max=100, help="0 takes the likeliest token.")
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", min=0, help="Keep so many likeliest tokens; 0: all.")
]
TopPOption = Annotated[
    float | None, typer.Option("--top-p", min=0, max=1, help="Keep this share of probability.")
]
MinPOption = Annotated[
    float | None, typer.Option("--min-p", min=0, max=1, help="Least share of the likeliest.")
]
SeedOption = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same answer.")]
