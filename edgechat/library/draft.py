"""The model that drafts for another: the one that was named, or a smaller one of the same vocabulary."""

from collections.abc import Sequence
from pathlib import Path

from edgechat.errors import EdgechatError
from edgechat.library.local import ModelFile, list_models, model_name, parts_of
from edgechat.library.resolve import resolve
from edgechat.library.starter import find_starter
from models.errors import ModelError
from models.gguf import read_header
from models.same_vocabulary import vocabulary_difference

AUTO = "auto"
WORDS = frozenset({"off", "ngram"})
SMALLER = 4
"""A draft model has at most this part of the size: a larger one takes more time than it saves."""
ALIKE = 4
"""So many letters do the names of two models of one family begin with."""
MOST_HEADERS = 3


def draft_for(word: str, model: Path) -> tuple[str, bool]:
    """What shall draft for a model, as `LoadSettings.draft` and `draft_must_pay` have it.

    Args:
        word: "off", "ngram", "auto", or the name or path of a model.
        model: the file that is drafted for.

    Raises:
        NotFoundError: there is no such model.
        UsageError: it could be several models.
    """
    if word in WORDS:
        return word, False
    if word != AUTO:
        try:
            return str(resolve(word)), False
        except EdgechatError as error:
            raise type(error)(f"the draft model: {error}") from error
    found = smaller_sibling(model)
    return ("ngram", False) if found is None else (str(found), True)


def smaller_sibling(model: Path, models: Sequence[ModelFile] | None = None) -> Path | None:
    """The smallest model of the library that could draft for `model`.

    Only files of at most a quarter of its size, and whose name begins alike, are looked into: others cost
    the start of every chat more time than they are likely to save.

    Args:
        model: the file that is drafted for.
        models: the library; None looks.
    """
    starter = find_starter()
    if starter is not None and starter == model:  # there is nothing smaller worth looking for
        return None
    try:
        size = sum(part.stat().st_size for part in parts_of(model))
    except OSError:
        return None
    name = model_name(model).casefold()
    candidates = [
        other
        for other in (list_models() if models is None else models)
        if 0 < other.size_bytes * SMALLER <= size and _alike(name, model_name(other.path).casefold())
    ]
    candidates.sort(key=lambda other: other.size_bytes)
    try:
        header = read_header(model) if candidates else None
    except (ModelError, OSError):
        return None
    for other in candidates[:MOST_HEADERS] if header is not None else ():
        try:
            if header is not None and not vocabulary_difference(header, read_header(other.path)):
                return other.path
        except (ModelError, OSError):
            continue
    return None


def _alike(name: str, other: str) -> bool:
    return name[:ALIKE] == other[:ALIKE]
