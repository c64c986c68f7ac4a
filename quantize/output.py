"""The names that runs give to what they make."""

import os
import re
from pathlib import Path

from quantize.errors import BadRequest, OutputExists
from quantize.plan import Target


def output_path(source: Path, target: Target, wanted: Path | None, *, force: bool) -> Path:
    """Where the result goes.

    Args:
        source: of the run.
        target: the type of the result.
        wanted: a file, or a folder for it; None: the current folder.
        force: it may be there already.

    Raises:
        BadRequest: there is no such folder, or it is the source itself.
        OutputExists: it is there already.
    """
    name = f"{model_name(source)}-{target.label}.gguf"
    output = Path(name) if wanted is None else wanted
    if output.is_dir():
        output = output / name
    output = output.absolute()
    if not output.parent.is_dir():
        raise BadRequest(f"there is no folder {output.parent}: make it, or give another place with -o")
    if not os.access(output.parent, os.W_OK):
        raise BadRequest(f"{output.parent} may not be written to: give another place with -o")
    if output.exists():
        if output.samefile(source):
            raise BadRequest(f"{output} is the source itself: give another name with -o")
        if not output.is_file():
            raise BadRequest(f"{output} is not a file: give another name with -o")
        if not force:
            raise OutputExists(f"{output} exists already: --force replaces it, -o gives another name")
    return output


def model_name(source: Path) -> str:
    """The model's name, without the type that a GGUF file's name ends in."""
    resolved = source.resolve()
    if resolved.is_dir():
        return resolved.name or "model"
    return re.sub(r"(?i)[-._](i?q\d\w*|b?f16|f32)$", "", resolved.stem) or "model"
