"""What each place with models takes on the disk."""

import msgspec

from edgechat.library.local import all_places, list_models, models_dir, models_in, parts_of
from edgechat.library.places import Program
from edgechat.library.pull import UNFINISHED
from edgechat.library.remove import unfinished

NOT_DONE = "unfinished downloads"


class PlaceUse(msgspec.Struct, frozen=True):
    """One place."""

    program: str
    folder: str
    models: int
    size_bytes: int
    """Of the files that are there; links take nothing."""


def disk_use() -> list[PlaceUse]:
    """Every place that has models, in the order in which they are looked for, each file counted once."""
    found: list[PlaceUse] = []
    package = [model for model in list_models([]) if model.program is Program.PACKAGE]
    for model in package:
        found.append(PlaceUse("package", str(model.path.parent), 1, model.size_bytes))
    seen: set[tuple[int, int]] = set()
    for place in all_places():
        models, size = models_in([place]), 0
        for model in models:
            for part in parts_of(model.path):
                # Hugging Face's own links lead into its own folder; others lead away.
                if part.is_symlink() and place.program is not Program.HUGGING_FACE:
                    continue
                try:
                    status = part.stat()
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    size += status.st_size
        if models:
            found.append(PlaceUse(str(place.program), str(place.folder), len(models), size))
    if left := unfinished():
        found.append(PlaceUse(NOT_DONE, str(models_dir() / UNFINISHED), 0, sum(size for _, size in left)))
    return found
