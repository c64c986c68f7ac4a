"""The models on this machine: the starter, ours, those in the person's folders, those of other programs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgechat.library.places import Place, Program, Search, files_in, gguf_files, places_of_others
from edgechat.library.starter import NAME as STARTER
from edgechat.library.starter import find_starter
from models.verify import SPLIT_NAME

MAX_DEPTH = 3
"""Folders are searched this deep: downloads come in folders of their owner and name."""
MAX_ENTRIES = 50_000
"""Files and folders that are looked through for the model of a folder: half a second or so."""
OWN = frozenset({Program.EDGECHAT, Program.SETTINGS})


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that can be named."""

    name: str
    """What to call it on the command line."""
    path: Path
    """Of a split model, the first part."""
    size_bytes: int
    """All parts together."""
    program: Program = Program.EDGECHAT
    """Whose it is."""
    modified_ns: int = 0
    """When the file was last written."""


def list_models(folders: Iterable[Path] | None = None) -> list[ModelFile]:
    """Every model that can be named, the starter first, the others by name. None of the files is read.

    A file that is reached in several ways is listed once: by ours, the person's, then the other programs'.

    Args:
        folders: where to look; None for the models folder, those in the settings and the other programs'.
    """
    starter = find_starter()
    found = [] if starter is None else [_model_file(STARTER, starter, Program.PACKAGE)]
    places = all_places() if folders is None else [Place(Program.SETTINGS, folder) for folder in folders]
    others = models_in(places)
    return found + sorted(others, key=lambda model: (model.name.casefold(), str(model.path)))


def models_in_folder(folder: Path) -> list[ModelFile]:
    """The models in a folder that a person named, and in those in it.

    Raises:
        TooManyFiles: it is no folder for models, but half a disk.
    """
    found = models_in([Place(Program.SETTINGS, folder)], Search(MAX_ENTRIES))
    return sorted(found, key=lambda model: (model.name.casefold(), str(model.path)))


def all_places() -> tuple[Place, ...]:
    """Where models are looked for: the models folder, `models.folders` of the settings, other programs."""
    from edgechat import settings

    section = settings.load().models
    return (
        Place(Program.EDGECHAT, models_dir()),
        *(Place(Program.SETTINGS, Path(name).expanduser()) for name in section.folders),
        *(places_of_others() if section.other_programs else ()),
    )


def models_in(places: Iterable[Place], search: Search | None = None) -> list[ModelFile]:
    """The models of some places, each file once; one whose path is no text can't be run, and is left out.

    Raises:
        TooManyFiles: `search` gave up.
    """
    seen: set[tuple[int, int]] = set()
    found: list[ModelFile] = []
    for place in places:
        for name, path in _files(place, search):
            match = SPLIT_NAME.match(path.name)
            if (match is not None and int(match["number"]) != 1) or not is_text(str(path)):
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                found.append(_model_file(name or model_name(path), path, place.program))
    return found


def is_text(path: str) -> bool:
    """Whether a path is UTF-8: what we keep and tell the engine is."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def models_dir() -> Path:
    """The folder of our own for models; it need not exist."""
    from edgechat import paths

    return paths.models_dir()


def model_name(path: Path) -> str:
    """What a file is called: its name without `.gguf`, and without its number if it is a part.

    The files of ollama are named by their hash: what they are called is looked up.
    """
    if path.name.startswith("sha256-") and path.parent.name == "blobs":
        for name, blob in files_in(Place(Program.OLLAMA, path.parent.parent)):
            if blob.name == path.name:
                return name
    match = SPLIT_NAME.match(path.name)
    return match["stem"] if match else path.name.removesuffix(".gguf")


def shown_name(path: Path) -> str:
    """What a model is called as `edgechat models ls` lists it."""
    starter = find_starter()
    if starter is not None and path.absolute() == starter.absolute():
        return STARTER
    return model_name(path)


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of a model by its first part; the file alone where it isn't split."""
    from models.verify import split_parts

    return split_parts(path) or (path,)


def _files(place: Place, search: Search | None) -> Iterator[tuple[str, Path]]:
    if place.program in OWN:
        return (("", path) for path in gguf_files(place.folder, MAX_DEPTH, search))
    return files_in(place)


def _model_file(name: str, path: Path, program: Program) -> ModelFile:
    size = modified = 0
    for part in parts_of(path):
        try:
            status = part.stat()
        except OSError:
            continue
        size += status.st_size
        modified = max(modified, status.st_mtime_ns)
    return ModelFile(name, path, size, program, modified)
