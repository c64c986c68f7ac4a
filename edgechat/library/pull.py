"""Pulls a model from the hub: all its files, checked, or none of them.

Files are downloaded into a folder of their own beside the models, named by what they are, so that a run
that was interrupted, by whatever it was, goes on where it stopped. Only a model that is whole and safe to
load gets its name in the models folder.
"""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from edgechat import paths
from edgechat.errors import NetworkError, NotFoundError, ResourceError, UnsupportedError
from edgechat.library.choose import Candidate, RemoteFile, candidates
from edgechat.library.fetch import Cancelled, Fetch, Patience, Progress, Stream
from edgechat.library.hub import Listing
from edgechat.library.local import models_dir
from edgechat.library.lock import exclusive
from edgechat.library.places import Place, Program, places_of_others
from edgechat.library.source import Source, SourceFile, load_source, save_source, sha256_of
from edgechat.units import bytes_text

UNFINISHED = ".unfinished"
"""The folder of downloads that are not done."""
PARALLEL = 4
SPARE_BYTES = 100 * 2**20
"""Disk that stays free."""


class Opener(Protocol):
    """What a file is downloaded with: the hub."""

    endpoint: str

    def open(self, listing: Listing, file: RemoteFile, start: int) -> AbstractContextManager[Stream]:
        """Connect to a file, from `start` on."""


class PullProgress(Progress, Protocol):
    """What is told of a download."""

    def begin(self, files: Sequence[RemoteFile]) -> None:
        """These files are going to come; what is there already is told with `found`."""

    def end(self) -> None:
        """Nothing more will come."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here now."""

    path: Path
    """Of a split model, the first part."""
    size_bytes: int
    was_here: bool
    """Nothing was downloaded."""
    verified: bool
    """Its checksums are those of the hub."""


def models_of(listing: Listing) -> list[Candidate]:
    """The models of a repository.

    Raises:
        NotFoundError: it has none.
        UnsupportedError: it is a checkpoint, and no GGUF file.
    """
    found = candidates(listing.files)
    if found:
        return found
    if any(file.name.endswith((".safetensors", ".bin")) for file in listing.files):
        raise UnsupportedError(
            f"{listing.repository} is a checkpoint without GGUF files: pull one whose name ends in -GGUF, or "
            "download it and run `edgechat quantize`"
        )
    raise NotFoundError(f"{listing.repository} has no GGUF file: look with `edgechat models search`")


def pull(
    hub: Opener,
    listing: Listing,
    chosen: Candidate,
    progress: PullProgress,
    patience: Patience | None = None,
) -> Pulled:
    """Download a model into the models folder, unless it is there.

    Args:
        hub: where it is.
        listing: its repository.
        chosen: which of its models.
        progress: is told what happens.
        patience: with a connection that fails; None for the usual.

    Raises:
        ResourceError: the disk has too little room.
        NetworkError: it can't be downloaded; what came so far is kept.
        BrokenModelFile: what came is no model that may be loaded.
        UnsupportedModel: what came can't be used here.
    """
    folder = paths.private_folder(models_dir() / Path(*listing.repository.split("/")))
    target = folder / chosen.files[0].base_name
    staging = models_dir() / UNFINISHED / _key(listing, chosen)
    paths.private_folder(staging.parent)
    lock = staging.with_name(f"{staging.name}.lock")
    waiting = f"another edgechat is pulling {target.name}: waiting for it"
    with exclusive(lock, lambda: progress.note(waiting)):
        if (known := _here(target, chosen)) is not None:
            shutil.rmtree(staging, ignore_errors=True)
            return Pulled(target, _size_of(folder, chosen), True, known.verified)
        paths.private_folder(staging)
        _link_known(staging, chosen.files, progress)
        _check_disk(staging, chosen, folder)
        digests = _download(hub, listing, chosen, staging, progress=progress, patience=patience or Patience())
        _verify(staging / target.name)
        source = Source(
            repository=listing.repository,
            revision=listing.revision,
            endpoint=hub.endpoint,
            pulled=time.time(),
            files=tuple(
                SourceFile(file.base_name, (staging / file.base_name).stat().st_size, digests[file.name])
                for file in chosen.files
            ),
            verified=all(file.sha256 is not None for file in chosen.files),
            licence=listing.licence,
        )
        # The first part comes last: a model whose first part is there is there wholly.
        for file in reversed(chosen.files):
            os.replace(staging / file.base_name, folder / file.base_name)
        save_source(target, source)
        shutil.rmtree(staging, ignore_errors=True)
    return Pulled(target, _size_of(folder, chosen), False, source.verified)


def _key(listing: Listing, chosen: Candidate) -> str:
    """A name for the download: the same as long as the files are."""
    digest = hashlib.sha256(listing.repository.encode())
    for file in chosen.files:
        digest.update(f"\0{file.name}\0{file.sha256 or listing.revision}\0{file.size}".encode())
    return f"{listing.repository.replace('/', '--')}--{digest.hexdigest()[:16]}"


def _here(target: Path, chosen: Candidate) -> Source | None:
    """The record of this very model, if all of it is in the models folder."""
    source = load_source(target)
    if source is None or len(source.files) != len(chosen.files):
        return None
    for recorded, file in zip(source.files, chosen.files, strict=True):
        same = (
            recorded.name == file.base_name
            and file.size in (None, recorded.size)
            and file.sha256 in (None, recorded.sha256)
        )
        if not same or _size(target.with_name(recorded.name)) != recorded.size:
            return None
    return source


def _link_known(staging: Path, files: Sequence[RemoteFile], progress: Progress) -> None:
    """Link what other programs have downloaded before: they too name files by their hash."""
    for file in files:
        there = None if file.sha256 is None else _blob(places_of_others(), file, file.sha256)
        place = staging / file.base_name
        if there is not None and not place.exists():
            progress.note(f"{file.base_name} is on this machine already: linking {there}")
            place.symlink_to(there)


def _blob(places: Sequence[Place], file: RemoteFile, sha256: str) -> Path | None:
    repository_folders: list[Path] = []
    for place in places:
        if place.program is Program.OLLAMA:
            repository_folders.append(place.folder / "blobs" / f"sha256-{sha256}")
        elif place.program is Program.HUGGING_FACE and place.folder.is_dir():
            repository_folders += place.folder.glob(f"models--*/blobs/{sha256}")
    return next((path for path in repository_folders if path.is_file() and _size(path) == file.size), None)


def _check_disk(staging: Path, chosen: Candidate, folder: Path) -> None:
    missing = 0
    for file in chosen.files:
        if file.size is None:
            return
        missing += max(0, file.size - max(0, _size(staging / file.base_name)))
    free = shutil.disk_usage(folder).free
    if missing and missing + SPARE_BYTES > free:
        raise ResourceError(
            f"{chosen.files[0].base_name} takes {bytes_text(missing)} more, and {folder} has "
            f"{bytes_text(free)} free: free some space, or choose a smaller quantization"
        )


def _download(
    hub: Opener,
    listing: Listing,
    chosen: Candidate,
    staging: Path,
    *,
    progress: PullProgress,
    patience: Patience,
) -> dict[str, str]:
    """Download what is missing, several files at a time.

    Returns:
        The SHA-256 of each file.
    """
    digests: dict[str, str] = {}
    failures: list[BaseException] = []
    cancelled = threading.Event()
    queue = list(chosen.files)
    lock = threading.Lock()

    def work() -> None:
        while not cancelled.is_set():
            with lock:
                if not queue:
                    return
                file = queue.pop(0)
            place = staging / file.base_name
            try:
                if place.is_symlink():
                    digest = _linked(place, file, progress)
                else:
                    digest = Fetch(
                        file.base_name, place, file.size, file.sha256,
                        lambda start, file=file: hub.open(listing, file, start),  # type: ignore[misc]
                        progress, cancelled, patience,
                    ).run()  # fmt: skip
                digests[file.name] = digest
            except BaseException as error:
                failures.append(error)
                cancelled.set()

    progress.begin([replace(file, name=file.base_name) for file in chosen.files])
    # Daemons, so that Ctrl-C need not wait for a connection that says nothing.
    threads = [
        threading.Thread(target=work, name=f"pull-{n}", daemon=True)
        for n in range(min(PARALLEL, len(chosen.files)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
    finally:
        cancelled.set()
        progress.end()
    for error in failures:
        if not isinstance(error, Cancelled):
            raise error
    return digests


def _linked(place: Path, file: RemoteFile, progress: Progress) -> str:
    """Check a file that another program has."""
    digest = sha256_of(place, lambda count: progress.found(file.base_name, count))
    if digest != file.sha256:
        there = place.resolve()
        place.unlink()
        raise NetworkError(f"{there} is damaged: remove it, and pull {file.base_name} again")
    return digest


def _verify(path: Path) -> None:
    """Refuse what must not be loaded, and don't keep it: the next pull would only find it again."""
    from models.errors import ModelError
    from models.verify import verify_gguf

    try:
        verify_gguf(path)
    except ModelError:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise


def _size_of(folder: Path, chosen: Candidate) -> int:
    return sum(max(0, _size(folder / file.base_name)) for file in chosen.files)


def _size(path: Path) -> int:
    """-1 where there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
