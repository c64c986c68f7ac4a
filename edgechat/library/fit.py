"""Whether a model of the catalog would run here: by its header where it is here, else by rule of thumb."""

from dataclasses import dataclass
from pathlib import Path

from edgechat.library.catalog import CatalogModel
from edgechat.library.ladder import COMFORTABLE_CTX, Verdict
from edgechat.library.local import models_dir
from edgechat.library.needs import Available
from edgechat.library.places import gguf_files

MIB, KIB = 2**20, 2**10
CTX = 8192
"""Tokens of context that a model is loaded with, where it knows as many."""

# What the planner says of models of several families: the engine with its vocabulary and intermediate
# results; keys and values of a token in float16, for a billion parameters, and how they grow with these.
ENGINE = 150 * MIB
KV, KV_GROWTH = 45 * KIB, 0.5


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model would run here. Bytes of memory, about."""

    needs: int
    """With as much context as it is loaded with by itself."""
    verdict: Verdict

    @property
    def fits(self) -> bool:
        """Whether it would, be it with less context."""
        return self.verdict is not Verdict.DOES_NOT


def fit(model: CatalogModel, available: Available) -> Fit | None:
    """Whether a model's recommended file and a conversation fit into memory; None where that isn't known.

    Args:
        model: one of the catalog.
        available: what may be taken.
    """
    path = _here(model)
    return by_rule(model, available) if path is None else _by_header(path, available)


def by_rule(model: CatalogModel, available: Available) -> Fit | None:
    """The same of a model that isn't here."""
    size = model.download_bytes
    if size is None:
        return None
    per_token = KV * (model.active or model.parameters) ** KV_GROWTH
    needs, least = (
        size + ENGINE + int(per_token * min(model.context or CTX, ctx)) for ctx in (CTX, COMFORTABLE_CTX)
    )
    if needs <= available.room:
        return Fit(needs, Verdict.FITS)
    return Fit(needs, Verdict.WITH_SETTINGS if least <= available.room else Verdict.DOES_NOT)


def _by_header(path: Path, available: Available) -> Fit | None:
    from edgechat.library.plan import plan
    from edgechat.records import LoadSettings
    from models.errors import ModelError

    try:
        report = plan(path, LoadSettings(str(path)), available=available, exact=False)
    except (ModelError, OSError):
        return None
    return Fit(report.asked_needs.held, report.verdict)


def _here(model: CatalogModel) -> Path | None:
    """The recommended file, if it was pulled."""
    wanted = model.quantization.replace("-", "_")
    files = gguf_files(models_dir() / model.repository, 1)
    return next((path for path in files if wanted in path.name.casefold().replace("-", "_")), None)
