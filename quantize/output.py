"""The names that runs give to what they make."""

import os
import re
from pathlib import Path

from quantize.errors import BadRequest, OutputExists
from quantize.plan import Target


def output_path(
    source: Path, target: Target, wanted: Path | None, *, force: bool, matrix: Path | None = None
) -> Path:
    """Where the result goes.

    Args:
        source: of the run.
        target: the type of the result.
        wanted: a file, or a folder for it; None: the current folder.
        force: it may be there already.
        matrix: where the importance matrix is, or is to be.

    Raises:
        BadRequest: there is no such folder, or it is the source itself, or would be one of its files.
        OutputExists: it is there already.
    """
    name = f"{model_name(source)}-{target.label}.gguf"
    output = Path(name) if wanted is None else wanted
    if output.is_dir():
        output = output / name
    output = output.absolute()
    _check_parent(output)
    if source.is_dir() and output.suffix.lower() != ".gguf" and _is_inside(output.parent, source):
        raise BadRequest(
            f"{output} would be one of the source's files: give a name in .gguf, or another place with -o"
        )
    if matrix is not None and matrix.resolve() == output.resolve():
        raise BadRequest(f"{output} can't be the result and its importance matrix: give another name with -o")
    if output.exists():
        if output.samefile(source):
            raise BadRequest(f"{output} is the source itself: give another name with -o")
        if not output.is_file():
            raise BadRequest(f"{output} is not a file: give another name with -o")
        if not force:
            raise OutputExists(f"{output} exists already: --force replaces it, -o gives another name")
    return output


def check_folder(output: Path, source: Path, *, force: bool) -> None:
    """Refuse a place where no result can go that is a folder.

    Args:
        output: the folder that the result will be.
        source: of the run.
        force: it may be there already.

    Raises:
        BadRequest: it can't be a folder of a result, or the source would go with what it replaces.
        OutputExists: it is there already.
    """
    _check_parent(output)
    if not output.exists():
        return
    if output.samefile(source):
        raise BadRequest(f"{output} is the source itself: give another name with -o")
    if not output.is_dir() or (any(output.iterdir()) and not (output / "config.json").is_file()):
        raise BadRequest(f"{output} is there and holds no checkpoint: give another name with -o")
    if _is_inside(source, output):
        raise BadRequest(f"{output} holds the source, which must stay: give another name with -o")
    if not force:
        raise OutputExists(f"{output} exists already: --force replaces it, -o gives another name")


def _check_parent(output: Path) -> None:
    if not output.parent.is_dir():
        raise BadRequest(f"there is no folder {output.parent}: make it, or give another place with -o")
    if not os.access(output.parent, os.W_OK):
        raise BadRequest(f"{output.parent} may not be written to: give another place with -o")


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or in it, whatever links lead there."""
    return path.resolve().is_relative_to(folder.resolve())


def model_name(source: Path) -> str:
    """The model's name, without the type that a GGUF file's name ends in."""
    resolved = source.resolve()
    if resolved.is_dir():
        return resolved.name or "model"
    return re.sub(r"(?i)[-._](i?q\d\w*|b?f16|f32)$", "", resolved.stem) or "model"
