"""The catalog: models that run well on a laptop, and where to pull them from. Data, in catalog.toml.

What isn't known of a model is left out there, never guessed.
"""

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

FILE = Path(__file__).with_name("catalog.toml")

# Bits per weight of a whole file, the tables kept at higher precision included: what llama.cpp's own
# quantizations of an 8B model come to. Small models with large vocabularies come to more.
BITS = {
    "q2_k": 3.2,
    "q3_k_m": 4.0,
    "q4_0": 4.7,
    "mxfp4": 4.6,
    "q4_k_m": 4.9,
    "q5_k_m": 5.7,
    "q6_k": 6.6,
    "q8_0": 8.5,
    "f16": 16.0,
    "bf16": 16.0,
}

Alias = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
Repository = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")]


class CatalogModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model."""

    alias: Alias
    """What to pull it by."""
    title: str
    family: Annotated[str, Meta(pattern=r"^[a-z0-9.-]+$")]
    repository: Repository
    """Where its GGUF files are."""
    parameters: Annotated[float, Meta(gt=0)]
    """In billions, all experts together."""
    licence: str = ""
    """As the hub abbreviates it, such as "apache-2.0"; "" where it isn't known."""
    context: Annotated[int, Meta(ge=0)] = 0
    """Tokens of context that it was trained on; 0 where it isn't known."""
    active: Annotated[float, Meta(ge=0)] = 0
    """Billions of parameters that a token uses, of a mixture of experts; 0: all."""
    quantization: str = "q4_k_m"
    """The recommended one: lower-case, as in the files' names."""
    size_bytes: Annotated[int, Meta(ge=0)] = 0
    """Of the recommended file; 0 where it isn't known."""
    draft: str = ""
    """Alias of a smaller model with the same vocabulary, to draft for it."""
    note: str = ""
    """What it is good for, in a few words."""

    @property
    def download_bytes(self) -> int | None:
        """How large the recommended file is, or about; None where the quantization is an unusual one."""
        bits = BITS.get(self.quantization)
        if self.size_bytes:
            return self.size_bytes
        return None if bits is None else int(self.parameters * 1e9 * bits / 8)


class _Catalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: tuple[CatalogModel, ...]


def parse_catalog(text: str) -> tuple[CatalogModel, ...]:
    """The models in a catalog.

    Raises:
        ValueError: it is not TOML, a field is wrong, an alias comes twice, a draft is not in it.
    """
    models = msgspec.convert(tomllib.loads(text), _Catalog).model
    known = {model.alias for model in models}
    if len(known) < len(models):
        raise ValueError("an alias comes twice")
    for model in models:
        if model.draft and (model.draft not in known or model.draft == model.alias):
            raise ValueError(f"{model.alias}: its draft {model.draft} is not in the catalog")
    return models


@cache
def catalog() -> tuple[CatalogModel, ...]:
    """The catalog that edgechat comes with."""
    return parse_catalog(FILE.read_text(encoding="utf-8"))


def find(name: str) -> CatalogModel | None:
    """The model of an alias, in any case."""
    return next((model for model in catalog() if model.alias == name.casefold()), None)


def of_repository(repository: str) -> CatalogModel | None:
    """The model that is pulled from a repository."""
    wanted = repository.casefold()
    return next((model for model in catalog() if model.repository.casefold() == wanted), None)


def search(words: Sequence[str], family: str = "") -> list[CatalogModel]:
    """The models that have all words in their description, smallest first; none given: all."""
    wanted = [word.casefold() for word in words]
    found = [
        model
        for model in catalog()
        if (not family or model.family == family.casefold())
        and all(word in _described(model) for word in wanted)
    ]
    return sorted(found, key=lambda model: (model.parameters, model.alias))


def families() -> list[str]:
    """Every family, by name."""
    return sorted({model.family for model in catalog()})


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names that look most like one."""
    return difflib.get_close_matches(name.casefold(), list(names), n=3, cutoff=0.5)


def _described(model: CatalogModel) -> str:
    return " ".join((model.alias, model.title, model.family, model.repository, model.note)).casefold()
