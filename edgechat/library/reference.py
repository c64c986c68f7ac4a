"""What a person asks to pull: a repository, an alias of the catalog, or something on this machine."""

import re
from dataclasses import dataclass
from pathlib import Path

from edgechat.errors import NotFoundError, UsageError
from edgechat.library import catalog
from edgechat.library.hub import REPOSITORY
from edgechat.library.hub_errors import DEFAULT_ENDPOINT

PREFIX = re.compile(r"^(?:https?://[^/]+/|hf\.co/|huggingface\.co/|hf://)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model of a hub."""

    repository: str
    quantization: str
    """Or a file's name; "" leaves the choice open."""
    recommended: str = ""
    """Taken where the choice is open."""
    draft: str = ""
    """Alias of the model that drafts for it."""

    @property
    def shown(self) -> str:
        """As the person would type it."""
        return f"{self.repository}:{self.quantization}" if self.quantization else self.repository


def parse(text: str) -> Wanted | Path:
    """What is meant.

    Args:
        text: OWNER/NAME, or an alias, each with `:QUANT` or `:FILE.gguf` if wanted; or a path.

    Raises:
        UsageError: it is none of these.
        NotFoundError: there is no such alias.
    """
    if not text.strip():
        raise UsageError("the name is empty: give an alias, OWNER/NAME or a path, as in qwen3-4b")
    path = Path(text).expanduser()
    if text.startswith(("/", "./", "../", "~")) or path.exists():
        return path
    bare = PREFIX.sub("", text).rstrip("/")
    name, _, quantization = bare.partition(":")
    if "/resolve/" in name or "/blob/" in name:  # the address of a file
        repository, _, rest = re.sub(r"/blob/", "/resolve/", name).partition("/resolve/")
        name, quantization = repository, rest.partition("/")[2].partition("?")[0]
    if "/" not in name:
        return _alias(name, quantization)
    if not REPOSITORY.match(name):
        raise UsageError(f"{text!r} is no repository: give OWNER/NAME, as in Qwen/Qwen3-4B-GGUF")
    return _wanted(name, quantization)


def draft_of(wanted: Wanted) -> Wanted:
    """The model that drafts for another.

    Raises:
        NotFoundError: none is known.
    """
    model = catalog.find(wanted.draft) if wanted.draft else None
    if model is None:
        raise NotFoundError(
            f"no draft is known for {wanted.repository}: pull a small model of the same family yourself"
        )
    return _wanted(model.repository, "")


def _alias(name: str, quantization: str) -> Wanted:
    model = catalog.find(name)
    if model is None:
        close = catalog.nearest(name, [one.alias for one in catalog.catalog()])
        hint = f"; did you mean {' or '.join(close)}?" if close else ":"
        raise NotFoundError(
            f"the catalog has no {name!r}{hint} `edgechat models search` lists it, and OWNER/NAME pulls from "
            f"{DEFAULT_ENDPOINT}"
        )
    return _wanted(model.repository, quantization)


def _wanted(repository: str, quantization: str) -> Wanted:
    known = catalog.of_repository(repository)
    if known is None:
        return Wanted(repository, quantization)
    return Wanted(repository, quantization, known.quantization, known.draft)
