"""Removes models: what is ours, and what nothing else uses. What other programs keep is theirs."""

import contextlib
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgechat.errors import UsageError
from edgechat.library.in_use import users_of
from edgechat.library.inspect import RECEIPT
from edgechat.library.local import ModelFile, models_dir, parts_of
from edgechat.library.places import Program, gguf_files, ollama_manifests
from edgechat.library.pull import UNFINISHED
from edgechat.library.source import remove_source
from edgechat.library.starter import PACKAGE
from edgechat.library.usage import forget_use


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model would do."""

    model: ModelFile
    paths: tuple[Path, ...]
    """Files and links that go."""
    freed_bytes: int
    """0 for a link, or where something else uses the file."""
    is_link: bool
    foreign: bool
    """The files are another program's, or the person's own folder's."""
    warning: str = ""
    """What would stop working."""
    users: tuple[int, ...] = ()
    """Numbers of the processes that run it."""


def plan_removal(model: ModelFile) -> Removal:
    """What would go, and what that frees.

    Raises:
        UsageError: it is installed as a package, or is no model but some file that was named by its path.
    """
    if model.program is Program.PACKAGE:
        name = PACKAGE.replace("_", "-")
        raise UsageError(f"{model.name} is a package: remove it with `pip uninstall {name}`")
    if model.program is Program.NONE and not _is_gguf(model.path):
        raise UsageError(f"{model.path} is no GGUF file: delete it yourself, if you mean that one")
    parts = parts_of(model.path)
    if model.program is Program.OLLAMA:
        return _ollama(model)
    gone = list(parts)
    if model.program is Program.HUGGING_FACE:
        gone += [blob for part in parts if (blob := _lonely_blob(part)) is not None]
    foreign = model.program is not Program.EDGECHAT
    is_link = not foreign and all(part.is_symlink() for part in parts)
    warning = "" if is_link else _linked_from(parts)
    freed = sum(_frees(path) for path in gone if not path.is_symlink())
    users = () if is_link else users_of(parts)
    return Removal(model, tuple(gone), freed, is_link, foreign, warning, users)


def remove(removal: Removal) -> None:
    """Do it.

    Raises:
        OSError: something can't be removed.
    """
    forget_use(removal.model.path)
    for path in removal.paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    if removal.foreign:
        return
    remove_source(removal.model.path)
    _tidy(removal.model.path.parent)


def remedy(model: ModelFile) -> str:
    """How the program that keeps a model removes it."""
    return {
        Program.OLLAMA: f"run `ollama rm {shlex.quote(model.name)}`",
        Program.HUGGING_FACE: "run `hf cache rm` for its repository",
        Program.LM_STUDIO: "remove it in LM Studio",
    }.get(model.program, f"delete {model.path} yourself")


def unfinished() -> list[tuple[Path, int]]:
    """Folders of downloads that were not finished, and their sizes."""
    try:
        folders = sorted(path for path in (models_dir() / UNFINISHED).iterdir() if path.is_dir())
    except OSError:
        return []
    return [(folder, sum(_size(path) for path in folder.iterdir())) for folder in folders]


def remove_unfinished() -> int:
    """Remove them all; what an edgechat is pulling right now stays.

    Returns:
        The bytes that were freed.
    """
    from edgechat.library.lock import try_exclusive

    freed = 0
    for folder, size in unfinished():
        with try_exclusive(folder.with_name(f"{folder.name}.lock")) as mine:
            if mine:
                shutil.rmtree(folder, ignore_errors=True)
                freed += size
    return freed


def _ollama(model: ModelFile) -> Removal:
    """A model of ollama's is a manifest, and the blobs that no other manifest names."""
    folder = model.path.parent.parent
    gone: list[Path] = []
    mine: set[str] = set()
    others: set[str] = set()
    for name, manifest, digests in ollama_manifests(folder):
        if name == model.name:
            gone.append(manifest)
            mine.update(digests)
        else:
            others.update(digests)
    gone += [folder / "blobs" / f"sha256-{digest}" for digest in sorted(mine - others)]
    freed = sum(_frees(path) for path in gone)
    return Removal(
        model,
        tuple(gone),
        freed,
        is_link=False,
        foreign=True,
        warning=_linked_from((model.path,)),
        users=users_of((model.path,)),
    )


def _is_gguf(path: Path) -> bool:
    """By its name, should it be damaged, or by its first bytes."""
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _lonely_blob(link: Path) -> Path | None:
    """The blob that only this link of Hugging Face's cache leads to; None where another does too."""
    if not link.is_symlink():
        return None
    blob = Path(os.path.realpath(link))
    repository = next((one for one in link.parents if one.name.startswith("models--")), None)
    if repository is None or blob.parent != Path(os.path.realpath(repository)) / "blobs":
        return None
    links = [path for path in (repository / "snapshots").rglob("*") if path.is_symlink()]
    others = [path for path in links if path != link and Path(os.path.realpath(path)) == blob]
    return None if others else blob


def _linked_from(parts: tuple[Path, ...]) -> str:
    """Which links in the models folder lead to these files; "" for none."""
    targets = {os.path.realpath(part) for part in parts}
    links = [
        path
        for path in gguf_files(models_dir(), 3)
        if path.is_symlink() and path not in parts and os.path.realpath(path) in targets
    ]
    return f"{links[0]} links to it" if links else ""


def _tidy(folder: Path) -> None:
    """Remove folders of ours that are empty now, but for a receipt of what is gone."""
    root = models_dir()
    while folder != root and root in folder.parents:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [RECEIPT]:
                (folder / RECEIPT).unlink()
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _frees(path: Path) -> int:
    """What removing a file gives back: nothing while another hard link has it."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if status.st_nlink == 1 else 0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
