"""From what a person types to the file of a model."""

import difflib
import os
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgechat.errors import BrokenModelError, NotFoundError, UnsupportedError, UsageError
from edgechat.library.catalog import find
from edgechat.library.local import (
    OWN,
    ModelFile,
    is_text,
    list_models,
    model_name,
    models_dir,
    models_in_folder,
    parts_of,
)
from edgechat.library.places import Program, TooManyFiles
from edgechat.library.repacked import is_packed, repacked
from edgechat.library.starter import NAME as STARTER
from edgechat.library.starter import starter_path
from edgechat.library.usage import record_use

LIST = "`edgechat models ls` lists what is here"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
PICKLED = (
    "has its weights in a form that can run any code when it is read, so it isn't: "
    "get the model in safetensors, or as a GGUF file"
)


def resolve(name: str | None, models: Sequence[ModelFile] | None = None) -> Path:
    """The file of the model that a person named; None is the starter.

    A name is a path (`~` is expanded), `starter`, an alias of the catalog or a repository that was pulled,
    or the name of a model in the library: with or without `.gguf`, in any case, or the beginning of it where
    that fits one model only.

    Args:
        name: what the person typed.
        models: the library; None looks.

    Raises:
        NotFoundError: there is no such model; the message has the nearest names.
        UnsupportedError: it is a checkpoint that must be quantized first; the message has the command.
        UsageError: it could be several models, or is no text.
        BrokenModelError: it is a device, a FIFO or a socket.
    """
    if name is None or name.casefold() == STARTER:
        return starter_path()
    if not name.strip():
        raise UsageError(f"the model's name is empty: {LIST}")
    _check_is_text(name)
    path = Path(os.path.expanduser(name))
    if path.is_file():
        return _file(path)
    models = list_models() if models is None else models
    if path.is_dir():
        # A folder may happen to be called as a model is.
        return _named(name, models) if path.name == name and _is_known(name, models) else _in_folder(path)
    if (found := _pulled(name)) is not None:
        return found
    if _is_known(name, models):  # names of ollama's may have slashes
        return _named(name, models)
    _check_is_no_device(path)
    if path.name != name:
        raise NotFoundError(f"no file at {path}{_nearest_files(path)} {LIST}")
    return _named(name, models)


def _check_is_no_device(path: Path) -> None:
    """Refuse what is there and is neither a file nor a folder: a device, a FIFO, a socket.

    Raises:
        BrokenModelError: it is such.
    """
    with suppress(OSError, ValueError):  # no path at all
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BrokenModelError(f"{path} is no regular file: give a GGUF file, or the name of a model")


def _check_is_text(name: str) -> None:
    if not is_text(name):
        raise UsageError(
            f"the name {name} is not UTF-8, which no model's may be: rename it, or link to it by another"
        )


def resolve_to_load(name: str | None) -> Path:
    """As `resolve`; the model's last use is now. The folder of a GPTQ, AWQ or INT8 checkpoint is a model too,
    by the GGUF file that is made of it.

    Raises:
        UnsupportedError: that can't be made.
    """
    _check_is_text(name or "")
    folder = Path(os.path.expanduser(name or ""))
    path = repacked(folder) if name and folder.is_dir() and is_packed(folder) else resolve(name)
    record_use(path)
    return path


def resolve_source(name: str) -> Path:
    """What is to be quantized: a checkpoint's folder, or the GGUF file of a model as `resolve` finds it.

    Raises:
        EdgechatError: as `resolve` does.
        ModelError: the file is no model, or broken.
    """
    from models.verify import verify_gguf

    _check_is_text(name)
    folder = Path(os.path.expanduser(name))
    if name.strip() and folder.is_dir() and not _is_named_as(folder, name):
        if (folder / "config.json").is_file() or any(folder.glob("*.safetensors*")):
            return folder
        if not _models_of(folder):
            raise NotFoundError(
                f"no checkpoint in the folder {folder}: give one with config.json and weights"
            )
    if folder.is_file() and (folder.suffix == ".safetensors" or folder.name == "config.json"):
        raise UnsupportedError(f"{folder} is one file of a checkpoint: give the folder, {folder.parent}")
    path = resolve(name)
    verify_gguf(path)
    return path


def _is_named_as(folder: Path, name: str) -> bool:
    """A folder here may happen to be called as the starter is."""
    return name.casefold() == STARTER and not (folder / "config.json").is_file()


def _is_known(name: str, models: Sequence[ModelFile]) -> bool:
    return any(model.name.casefold() == name.casefold() for model in models)


def resolve_model(name: str) -> ModelFile:
    """The model that a person named, as the library lists it; one that lies elsewhere is no program's.

    Raises:
        EdgechatError: as `resolve` does.
    """
    models = list_models()
    path = resolve(name, models)
    for model in models:
        if model.path.absolute() == path:
            return model
    size = sum(part.stat().st_size for part in parts_of(path) if part.exists())
    return ModelFile(model_name(path), path, size, Program.NONE)


def _file(path: Path) -> Path:
    if path.suffix == ".safetensors" or path.name == "config.json":
        if not (path.parent / "config.json").is_file():
            raise UnsupportedError(
                f"{path} holds weights alone, which nothing can be made of without config.json and the other "
                "files that come with them: get the whole folder, or a GGUF file"
            )
        raise UnsupportedError(f"{path} is part of a checkpoint: {_quantize(path.parent)}")
    if path.suffix in PICKLES:
        raise UnsupportedError(f"{path} {PICKLED}")
    first = parts_of(path)[0]
    return (first if first.is_file() else path).absolute()


def _in_folder(folder: Path) -> Path:
    """The one model in a folder."""
    found = _models_of(folder)
    if len(found) == 1:
        return found[0].path.absolute()
    if found:
        names = _some([str(model.path) for model in found])
        raise UsageError(f"{folder} holds {len(found)} models: name one of them ({names})")
    if any(folder.glob("*.safetensors")):
        raise UnsupportedError(f"{folder} is a checkpoint, which can't be run as it is: {_quantize(folder)}")
    if any(path.suffix in PICKLES for path in folder.iterdir()):
        raise UnsupportedError(f"{folder} {PICKLED}")
    if (folder / "config.json").is_file():
        raise NotFoundError(
            f"{folder} describes a model (config.json), but has no weights: download the rest"
        )
    raise NotFoundError(f"no model in the folder {folder}: {LIST}")


def _models_of(folder: Path) -> list[ModelFile]:
    try:
        return models_in_folder(folder)
    except TooManyFiles:
        raise UsageError(
            f"{folder} holds too much to look through for a model: name the file, or the folder that it is in"
        ) from None


def _pulled(name: str) -> Path | None:
    """The model that was pulled as `OWNER/NAME` or `OWNER/NAME:QUANT`; None where there is none."""
    repository, _, quantization = name.partition(":")
    if repository.count("/") != 1 or ".." in repository or not (models_dir() / repository).is_dir():
        return None
    found = [model for model in list_models([models_dir() / repository]) if model.name != STARTER]
    if quantization:
        wanted = quantization.casefold().removesuffix(".gguf").replace("-", "_")
        found = [model for model in found if model.name.casefold().replace("-", "_").endswith(wanted)]
    if len(found) > 1:
        names = _some([model.name for model in found])
        raise UsageError(f"{name} could be {len(found)} models: name one of them ({names})")
    return found[0].path.absolute() if found else None


def _named(name: str, models: Sequence[ModelFile]) -> Path:
    wanted = name.casefold().removesuffix(".gguf")
    exact = [model for model in models if model.name.casefold() == wanted]
    if len(exact) > 1 and len(own := [model for model in exact if model.program in OWN]) == 1:
        exact = own  # ours comes before what another program calls the same
    fitting = exact or _of_alias(wanted, models)
    fitting = fitting or [model for model in models if model.name.casefold().startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0].path.absolute()
    if fitting:
        names = _some([str(model.path) if exact else model.name for model in fitting])
        raise UsageError(f"{name!r} could be {len(fitting)} models: name one of them ({names})")
    if find(wanted) is not None:
        raise NotFoundError(f"{wanted} is not on this machine yet: run `edgechat models pull {wanted}`")
    close = _nearest(name, [model.name for model in models])
    raise NotFoundError(
        f"no model named {name!r}{close} {LIST}, and GGUF files in {models_dir()} are found by name"
    )


def _of_alias(alias: str, models: Sequence[ModelFile]) -> list[ModelFile]:
    """What was pulled from the repository of an alias of the catalog."""
    model = find(alias)
    if model is None:
        return []
    return [one for one in models if one.path.parent == models_dir() / model.repository]


def _some(names: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more there are."""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _nearest(name: str, names: Sequence[str]) -> str:
    close = {one.casefold(): one for one in (*names, STARTER)}
    wanted = name.casefold().removesuffix(".gguf")
    found = difflib.get_close_matches(wanted, close, n=3, cutoff=0.5)
    found += [key for key in close if wanted in key and key not in found][: 3 - len(found)]
    return f"; did you mean {' or '.join(close[key] for key in found)}?" if found else ":"


def _nearest_files(path: Path) -> str:
    try:
        names = [
            model_name(Path(entry)) for entry in os.listdir(path.parent) if _is_model(path.parent, entry)
        ]
    except OSError:
        return f" (there is no folder {path.parent}):"
    found = difflib.get_close_matches(model_name(path), names, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'{one}.gguf' for one in found)}?" if found else ":"


def _is_model(folder: Path, name: str) -> bool:
    """Whether it can be proposed: a file, and no pipe or folder that is called like one."""
    try:
        return name.endswith(".gguf") and (folder / name).is_file()
    except OSError:
        return False


def _quantize(folder: Path) -> str:
    return f"quantize it first, with `edgechat quantize {shlex.quote(str(folder))} --to gguf --type q4_k_m`"
