"""From what a person types to the file of a model."""

from pathlib import Path

from edgechat.errors import NotFoundError
from edgechat.library.starter import NAME as STARTER
from edgechat.library.starter import starter_path


def resolve(name: str | None) -> Path:
    """The file of the model that a person named: a path, or `starter`; None is the starter.

    Raises:
        NotFoundError: there is no such model.
    """
    if name is None or name == STARTER:
        return starter_path()
    path = Path(name).expanduser()
    if path.is_file():
        return path.absolute()
    raise NotFoundError(f"no model {name!r}: see `edgechat models ls`")
