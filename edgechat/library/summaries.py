"""Summaries that are kept between runs, so that listing two hundred models reads no model.

One file of JSON in the cache folder, by path, size and time of change of the model and of its receipt. It can
be deleted at any time; one that is damaged, or of another edgechat, is ignored.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgechat import __version__, paths
from edgechat.errors import EdgechatError, from_exception
from edgechat.library.inspect import RECEIPT, ModelSummary, summarize
from edgechat.library.local import ModelFile

FILE = "summaries.json"
MAX_BYTES = 2**27


class Trouble(msgspec.Struct, frozen=True):
    """Why there is no summary of a model: an error of edgechat's."""

    message: str
    code: int


class _Entry(msgspec.Struct, frozen=True):
    size: int
    modified: int
    receipt: int
    """When the receipt beside the model was changed; 0 where there is none."""
    summary: ModelSummary | None = None
    trouble: Trouble | None = None


class _Kept(msgspec.Struct, frozen=True):
    version: str
    entries: dict[str, _Entry]


def summaries(models: Sequence[ModelFile]) -> list[ModelSummary | Trouble]:
    """What each model is, or why that can't be said. A model that hasn't changed is not read again."""
    kept = _load()
    entries: dict[str, _Entry] = {}
    found: list[ModelSummary | Trouble] = []
    for model in models:
        entry = kept.get(str(model.path))
        key = (model.size_bytes, model.modified_ns, _receipt_time(model.path))
        if entry is None or (entry.size, entry.modified, entry.receipt) != key:
            entry = _examine(model, key)
        entries[str(model.path)] = entry
        known = entry.summary or entry.trouble
        if known is None:
            raise ValueError(f"{model.path}: an empty entry")  # _load lets none through
        if isinstance(known, ModelSummary) and known.name != model.name:
            known = msgspec.structs.replace(known, name=model.name)
        found.append(known)
    if entries != kept:
        _save(entries)
    return found


def _examine(model: ModelFile, key: tuple[int, int, int]) -> _Entry:
    try:
        return _Entry(*key, summary=summarize(model.path, model.name))
    except Exception as error:
        known: EdgechatError | None = from_exception(error)
        if known is None:
            raise
        return _Entry(*key, trouble=Trouble(str(known), int(known.code)))


def _load() -> dict[str, _Entry]:
    try:
        path = paths.cache_dir() / FILE
        if path.stat().st_size > MAX_BYTES:
            return {}
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, EdgechatError, msgspec.DecodeError, RecursionError):
        return {}
    if kept.version != __version__:
        return {}
    return {path: entry for path, entry in kept.entries.items() if entry.summary or entry.trouble}


def _save(entries: dict[str, _Entry]) -> None:
    """Keep them; where that fails, the next run reads the models again."""
    with contextlib.suppress(OSError, EdgechatError):
        paths.write_atomic(
            paths.cache_dir() / FILE, msgspec.json.encode(_Kept(version=__version__, entries=entries))
        )


def _receipt_time(path: Path) -> int:
    try:
        return path.with_name(RECEIPT).stat().st_mtime_ns
    except OSError:
        return 0
