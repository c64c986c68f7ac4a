"""From what a person types to the file of a model."""

import difflib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from edgechat.errors import NotFoundError, UnsupportedError, UsageError
from edgechat.library.local import ModelFile, list_models, model_name, models_dir, parts_of
from edgechat.library.starter import NAME as STARTER
from edgechat.library.starter import starter_path

LIST = "`edgechat models ls` lists what is here"


def resolve(name: str | None, models: Sequence[ModelFile] | None = None) -> Path:
    """The file of the model that a person named; None is the starter.

    A name is a path (`~` is expanded), `starter`, or the name of a model in the library: with or without
    `.gguf`, in any case, or the beginning of it where that fits one model only.

    Args:
        name: what the person typed.
        models: the library; None looks.

    Raises:
        NotFoundError: there is no such model; the message has the nearest names.
        UnsupportedError: it is a checkpoint that must be quantized first; the message has the command.
        UsageError: it could be several models.
    """
    if name is None or name.casefold() == STARTER:
        return starter_path()
    if not name.strip():
        raise UsageError(f"the model's name is empty: {LIST}")
    path = Path(name).expanduser()
    if path.is_dir() and path.name == name:  # a folder that happens to be called as a model is
        models = list_models() if models is None else models
        if any(model.name.casefold() == name.casefold() for model in models):
            return _named(name, models)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return _file(path)
    if path.name != name:
        raise NotFoundError(f"no file at {path}{_nearest_files(path)} {LIST}")
    return _named(name, list_models() if models is None else models)


def _file(path: Path) -> Path:
    if path.suffix in (".safetensors", ".bin", ".pt", ".pth"):
        raise UnsupportedError(f"{path} is part of a checkpoint: {_quantize(path.parent)}")
    first = parts_of(path)[0]
    return (first if first.is_file() else path).absolute()


def _in_folder(folder: Path) -> Path:
    """The one model in a folder."""
    found = [model for model in list_models([folder]) if model.name != STARTER]
    if len(found) == 1:
        return found[0].path.absolute()
    if found:
        names = ", ".join(str(model.path) for model in found[:4])
        raise UsageError(f"{folder} holds {len(found)} models: name one of them ({names})")
    if (folder / "config.json").is_file() or any(folder.glob("*.safetensors")):
        raise UnsupportedError(f"{folder} is a checkpoint, which can't be run as it is: {_quantize(folder)}")
    raise NotFoundError(f"no model in the folder {folder}: {LIST}")


def _named(name: str, models: Sequence[ModelFile]) -> Path:
    wanted = name.casefold().removesuffix(".gguf")
    exact = [model for model in models if model.name.casefold() == wanted]
    fitting = exact or [model for model in models if model.name.casefold().startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0].path.absolute()
    if fitting:
        names = ", ".join(str(model.path) if exact else model.name for model in fitting[:4])
        raise UsageError(f"{name!r} could be {len(fitting)} models: name one of them ({names})")
    close = _nearest(name, [model.name for model in models])
    raise NotFoundError(
        f"no model named {name!r}{close} {LIST}, and GGUF files in {models_dir()} are found by name"
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    close = {one.casefold(): one for one in (*names, STARTER)}
    wanted = name.casefold().removesuffix(".gguf")
    found = difflib.get_close_matches(wanted, close, n=3, cutoff=0.5)
    found += [key for key in close if wanted in key and key not in found][: 3 - len(found)]
    return f"; did you mean {' or '.join(close[key] for key in found)}?" if found else ":"


def _nearest_files(path: Path) -> str:
    try:
        names = [model_name(Path(entry)) for entry in os.listdir(path.parent) if entry.endswith(".gguf")]
    except OSError:
        return f" (there is no folder {path.parent}):"
    found = difflib.get_close_matches(model_name(path), names, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'{one}.gguf' for one in found)}?" if found else ":"


def _quantize(folder: Path) -> str:
    return f"quantize it first, with `edgechat quantize {shlex.quote(str(folder))} --to gguf --type q4_k_m`"
