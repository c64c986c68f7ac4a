"""Gives a model that lies elsewhere a name in the models folder: a link, not a copy."""

import os
import shlex
from pathlib import Path

from edgechat import paths
from edgechat.errors import NotFoundError, UnsupportedError, UsageError
from edgechat.library.local import MAX_ENTRIES, model_name, models_dir, parts_of
from edgechat.library.places import Search, TooManyFiles, gguf_files
from models.verify import SPLIT_NAME, verify_gguf


def link(target: Path, name: str = "") -> list[Path]:
    """Link a model, or all models of a folder, into the models folder, once they are found sound.

    Args:
        target: a GGUF file, or a folder of such files.
        name: what to call it; "" for the file's own name.

    Returns:
        The links to the (first) file of each model; those that were there already among them.

    Raises:
        NotFoundError: there is nothing to link.
        UnsupportedError: it is a checkpoint.
        UsageError: the name is taken, or can't be one.
        BrokenModelFile, UnsupportedModel: it is no model that can be loaded.
    """
    if target.is_dir():
        try:
            models = [path for path in gguf_files(target, 3, Search(MAX_ENTRIES)) if _is_first(path)]
        except TooManyFiles:
            raise UsageError(
                f"{target} holds too much to look through: name the models' own folder"
            ) from None
        if not models and any(target.glob("*.safetensors")):
            raise UnsupportedError(
                f"{target} is a checkpoint: run `edgechat quantize {shlex.quote(str(target))} --to gguf`"
            )
        if not models:
            raise NotFoundError(f"no GGUF file in {target}: name a folder or file that holds a model")
        if name and len(models) > 1:
            raise UsageError(f"{target} holds {len(models)} models: one name can't be given to all of them")
        return [_link_one(path, name) for path in models]
    if not target.exists():
        raise NotFoundError(f"no file at {target}: name a GGUF file or a folder of them")
    return [_link_one(parts_of(target)[0], name)]


def _link_one(target: Path, name: str) -> Path:
    if name and (name != Path(name).name or name.startswith(".")):
        raise UsageError(f"{name!r} can't be a name: leave out slashes and a dot in front")
    verify_gguf(target)
    folder = paths.private_folder(models_dir())
    links: list[Path] = []
    for part in parts_of(target):
        place = folder / _name(part, name.removesuffix(".gguf"))
        there = Path(os.path.abspath(part))
        if os.path.lexists(place):
            if place.exists() and place.samefile(part):
                links.append(place)
                continue
            raise UsageError(f"{place} is there already: give another name with --name")
        place.symlink_to(there)
        links.append(place)
    return links[0]


def _name(part: Path, name: str) -> str:
    match = SPLIT_NAME.match(part.name)
    if match:
        return f"{name or match['stem']}-{match['number']}-of-{match['count']}.gguf"
    return f"{(name or model_name(part)).replace('/', '-').replace(':', '-')}.gguf"


def _is_first(path: Path) -> bool:
    match = SPLIT_NAME.match(path.name)
    return match is None or int(match["number"]) == 1
