"""Where a model was pulled from, and its checksums: a file of JSON beside it."""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edgechat import paths

SUFFIX = ".source.json"
MAX_BYTES = 2**20
READ_BYTES = 2**20


class SourceFile(msgspec.Struct, frozen=True):
    """One file of a model, as the hub described it."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: str
    """In hex."""


class Source(msgspec.Struct, frozen=True):
    """Where a model came from."""

    repository: str
    revision: str
    """The commit."""
    endpoint: str
    pulled: float
    """Seconds since 1970."""
    files: tuple[SourceFile, ...]
    """All parts in order."""
    verified: bool = True
    """The hub gave checksums, and they were right; else they are those of what came."""
    licence: str = ""


def source_path(model: Path) -> Path:
    """Where the record of a model is, by its (first) file."""
    return model.with_name(model.name + SUFFIX)


def load_source(model: Path) -> Source | None:
    """The record of a model; None where there is none that can be read."""
    place = source_path(model)
    try:
        if place.stat().st_size > MAX_BYTES:
            return None
        return msgspec.json.decode(place.read_bytes(), type=Source)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def save_source(model: Path, source: Source) -> None:
    """Write the record of a model.

    Raises:
        OSError: it can't be written.
    """
    paths.write_atomic(source_path(model), msgspec.json.format(msgspec.json.encode(source), indent=2))


def sha256_of(path: Path, on_bytes: Callable[[int], object] | None = None) -> str:
    """The SHA-256 of a file, in hex.

    Raises:
        OSError: it can't be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    return digest.hexdigest()


def remove_source(model: Path) -> None:
    """Remove the record of a model, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        source_path(model).unlink()
