"""The models on this machine: the starter, those in the models folder, and those in the person's folders."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgechat.library.starter import NAME as STARTER
from edgechat.library.starter import find_starter
from models.verify import SPLIT_NAME

MAX_DEPTH = 3
"""Folders are searched this deep: downloads come in folders of their owner and name."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that can be named."""

    name: str
    """What to call it on the command line."""
    path: Path
    """Of a split model, the first part."""
    size_bytes: int
    """All parts together."""


def list_models(folders: Iterable[Path] | None = None) -> list[ModelFile]:
    """Every model that can be named, the starter first, the others by name. None of the files is read.

    Args:
        folders: where to look; None for the models folder and those in the settings.
    """
    found: list[ModelFile] = []
    starter = find_starter()
    if starter is not None:
        found.append(ModelFile(STARTER, starter, starter.stat().st_size))
    seen: set[Path] = set()
    others: list[ModelFile] = []
    for folder in model_folders() if folders is None else folders:
        for path in _gguf_files(folder, MAX_DEPTH):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                others.append(ModelFile(model_name(path), path, sum(_size(part) for part in parts_of(path))))
    return found + sorted(others, key=lambda model: (model.name.casefold(), str(model.path)))


def model_folders() -> tuple[Path, ...]:
    """Where models are looked for: the models folder, then `models.folders` of the settings."""
    from edgechat import settings

    return (models_dir(), *(Path(name).expanduser() for name in settings.load().models.folders))


def models_dir() -> Path:
    """The folder of our own for models; it need not exist."""
    from edgechat import paths

    return paths.data_dir() / "models"


def model_name(path: Path) -> str:
    """What a file is called: its name without `.gguf`, and without its number if it is a part."""
    match = SPLIT_NAME.match(path.name)
    return match["stem"] if match else path.name.removesuffix(".gguf")


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of a model by its first part; the file alone where it isn't split."""
    from models.verify import split_parts

    return split_parts(path) or (path,)


def _gguf_files(folder: Path, depth: int) -> Iterator[Path]:
    """First parts and whole models in a folder and those in it; what can't be read is left out."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.suffix == ".gguf" and entry.is_file():
            match = SPLIT_NAME.match(entry.name)
            if match is None or int(match["number"]) == 1:
                yield entry
        elif depth > 1 and entry.is_dir():
            yield from _gguf_files(entry, depth - 1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
