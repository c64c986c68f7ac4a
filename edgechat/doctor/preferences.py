"""The check of the settings: the file can be read, all in it is known, and what it names is there."""

import os
from collections.abc import Iterator
from pathlib import Path

from edgechat.doctor.findings import Finding, Severity
from edgechat.errors import EdgechatError
from edgechat.settings import EngineSection, ModelsSection, Settings

LISTED = "a model that `edgechat models ls` lists"


def check_settings() -> Finding:
    """The settings file can be read, and all in it is known and there."""
    from edgechat import paths, settings

    try:
        path: Path = paths.config_file()
        found = settings.load(path)
    except EdgechatError as error:
        return Finding(
            "settings", "?", Severity.FAULT, str(error), "correct that line of the file, or take it out"
        )
    data = {"path": str(path)}
    if not path.exists():
        return Finding("settings", f"{path} (none: all defaults)", data=data)
    troubles = list(_troubles(found))
    if not troubles:
        return Finding("settings", f"{path}", data=data)
    problems, remedies = zip(*troubles, strict=True)
    return Finding(
        "settings", f"{path}", Severity.WARNING, f"{path}: {'; '.join(problems)}", "; ".join(remedies), data
    )


def _troubles(settings: Settings) -> Iterator[tuple[str, str]]:
    """What is named but not there, and what to do about each."""
    from edgechat.library.starter import NAME as STARTER

    model = settings.chat.model
    if model.casefold() != STARTER and (why := _unusable(model)):
        yield f"chat.model {model!r} can't be used ({why})", f"set chat.model to {LISTED}"
    yield from _draft(settings.engine)
    yield from _folders(settings.models)


def _draft(section: EngineSection) -> Iterator[tuple[str, str]]:
    from edgechat.library.draft import AUTO, WORDS

    if section.draft not in {AUTO, *WORDS} and (why := _unusable(section.draft)):
        yield (
            f"engine.draft {section.draft!r} can't be used ({why})",
            f"set engine.draft to off, ngram, auto or {LISTED}",
        )


def _folders(section: ModelsSection) -> Iterator[tuple[str, str]]:
    for name in section.folders:
        folder = Path(os.path.expanduser(name))
        if not name.strip():
            yield "models.folders has an empty name", "take the empty name out of models.folders"
        elif not folder.is_dir():
            why = "is no folder" if folder.exists() else "is not there"
            yield f"{folder} of models.folders {why}", f"make {folder}, or take it out of models.folders"


def _unusable(name: str) -> str:
    """Why there is no model of that name that can be loaded; "" where there is one."""
    from edgechat.library.repacked import is_packed
    from edgechat.library.resolve import resolve
    from models.errors import ModelError
    from models.verify import verify_gguf

    folder = Path(os.path.expanduser(name))
    try:
        if name.strip() and folder.is_dir() and is_packed(folder):
            return ""
        verify_gguf(resolve(name))
    except (EdgechatError, ModelError, OSError) as error:
        return str(error)
    return ""
