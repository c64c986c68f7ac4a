"""`edgechat models search`: what there is to pull."""

from typing import TYPE_CHECKING, Annotated

import typer

from edgechat.cli.options import AsJsonOption
from edgechat.cli.output import json_object, note
from edgechat.cli.tables import table
from edgechat.errors import UsageError
from edgechat.library.ladder import Verdict
from edgechat.units import bytes_text

if TYPE_CHECKING:
    from edgechat.library.catalog import CatalogModel
    from edgechat.library.fit import Fit

HEADS = ("pull it as", "weights", "download", "needs", "fits", "context", "licence", "draft", "good for")
FITS = {Verdict.FITS: "yes", Verdict.WITH_SETTINGS: "with less context", Verdict.DOES_NOT: "no"}

Words = Annotated[list[str] | None, typer.Argument(metavar="WORDS", help="All must be in a model's entry.")]


def search(
    words: Words = None,
    *,
    family: Annotated[str, typer.Option(help="Only this family, such as qwen3.")] = "",
    fits: Annotated[bool, typer.Option("--fits", help="Only what fits into this machine's memory.")] = False,
    online: Annotated[bool, typer.Option("--online", help="Ask the hub instead of the catalog.")] = False,
    as_json: AsJsonOption = False,
) -> None:
    """Search the catalog of models that run on laptops; it comes with edgechat, so no network is asked."""
    if online:
        if family or fits:
            raise UsageError("--online knows no --family and no --fits: give words instead")
        _online(words or [], as_json)
        return
    from edgechat.library import catalog
    from edgechat.library.fit import fit as fit_of
    from edgechat.library.plan import main_memory

    if family and family.casefold() not in catalog.families():
        raise UsageError(f"there is no family {family!r}: {', '.join(catalog.families())}")
    available = main_memory()
    found = []
    for model in catalog.search(words or [], family):
        fit = fit_of(model, available)
        if not fits or (fit is not None and fit.fits):
            found.append((model, fit))
    if as_json:
        json_object({"models": [_record(model, fit) for model, fit in found]})
        return
    table(HEADS, [_row(model, fit) for model, fit in found], spare=("licence", "context", "draft"))
    if not found:
        note("the catalog has none: `edgechat models search --online` asks the hub")


def _record(model: "CatalogModel", fit: "Fit | None") -> dict[str, object]:
    return {
        "model": model,
        "download_bytes": model.download_bytes,
        "needs_bytes": None if fit is None else fit.needs,
        "fits": None if fit is None else fit.fits,
        "verdict": None if fit is None else fit.verdict,
    }


def _row(model: "CatalogModel", fit: "Fit | None") -> tuple[str, ...]:
    return (
        model.alias,
        _parameters(model.parameters, model.active),
        "" if model.download_bytes is None else f"{_about(model)}{bytes_text(model.download_bytes)}",
        "" if fit is None else f"~{bytes_text(fit.needs)}",
        "" if fit is None else FITS[fit.verdict],
        f"{model.context:,}" if model.context else "",
        model.licence,
        model.draft,
        model.note,
    )


def _online(words: list[str], as_json: bool) -> None:
    from edgechat import offline

    offline.require_network("search the hub")
    from edgechat.library.hub import Hub

    found = Hub().search(" ".join(words))
    if as_json:
        json_object(
            {
                "repositories": [
                    {"repository": one.repository, "downloads": one.downloads, "gated": one.gated}
                    for one in found
                ]
            }
        )
        return
    table(
        ("pull it as", "downloads", ""),
        [(one.repository, f"{one.downloads:,}", "gated" if one.gated else "") for one in found],
    )
    if not found:
        note("the hub has no GGUF files by these words")


def _parameters(billions: float, active: float) -> str:
    whole = f"{billions:.3g}B" if billions >= 1 else f"{billions * 1000:.3g}M"
    return f"{whole} ({active:.3g}B active)" if active else whole


def _about(model: "CatalogModel") -> str:
    return "" if model.size_bytes else "~"
