"""Where other programs on this machine keep their models, which are used in place.

Formats: the cache of Hugging Face (blobs, with snapshots of links), llama.cpp's cache (files side by side),
ollama's (manifests in JSON that name blobs by their hash) and LM Studio's (publisher/model/file). What can't
be read is left out: a stranger's folder is no reason to fail.
"""

import contextlib
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

MAX_MANIFEST_BYTES = 2**20
MAX_MANIFESTS = 10_000
OLLAMA_MODEL = "application/vnd.ollama.image.model"
OLLAMA_SYSTEM = Path("/usr/share/ollama/.ollama/models")
"""Where ollama's installer for Linux lets its service keep models."""
DIGEST = re.compile(r"^sha256[:-]([0-9a-f]{64})$")
# Image encoders and other companions of a model are no models themselves.
COMPANION = re.compile(r"(^|[-._])mmproj([-._]|$)", re.IGNORECASE)


class Program(StrEnum):
    """Whose models they are."""

    PACKAGE = "package"
    """Installed with pip: the starter."""
    EDGECHAT = "edgechat"
    SETTINGS = "settings"
    """A folder that the settings name: the person's own files."""
    HUGGING_FACE = "Hugging Face"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "ollama"
    LM_STUDIO = "LM Studio"
    NONE = ""
    """A file that was named by its path and lies in none of these places."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with models in it."""

    program: Program
    folder: Path


class _Layer(msgspec.Struct):
    mediaType: str
    digest: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


class _LMStudioSettings(msgspec.Struct):
    downloadsFolder: str = ""


def places_of_others(environment: Mapping[str, str] | None = None) -> tuple[Place, ...]:
    """Where other programs keep their models; the folders need not exist.

    Args:
        environment: the variables that move these places; None for those of this process.
    """
    env = os.environ if environment is None else environment
    home = Path(env.get("HOME") or Path.home())
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    places = [Place(Program.HUGGING_FACE, _hugging_face(env, cache))]
    places.append(Place(Program.LLAMA_CPP, _llama_cpp(env, home, cache)))
    if env.get("OLLAMA_MODELS"):
        places.append(Place(Program.OLLAMA, Path(env["OLLAMA_MODELS"]).expanduser()))
    else:
        places += [Place(Program.OLLAMA, home / ".ollama" / "models"), Place(Program.OLLAMA, OLLAMA_SYSTEM)]
    places += [Place(Program.LM_STUDIO, folder) for folder in _lm_studio(home)]
    return tuple(places)


def files_in(place: Place) -> Iterator[tuple[str, Path]]:
    """Name and path of each model of another program; of a split model, every part.

    A name is "" where the file's own will do.
    """
    if place.program is Program.OLLAMA:
        yield from _ollama_models(place.folder)
    elif place.program is Program.HUGGING_FACE:
        yield from (("", path) for path in _snapshot_files(place.folder))
    else:
        yield from (("", path) for path in gguf_files(place.folder, depth=4))


class TooManyFiles(Exception):
    """A folder holds more than is looked through."""


class Search:
    """How much is looked through before a search is given up."""

    def __init__(self, most: float = math.inf) -> None:
        """`most`: files and folders."""
        self._left = most

    def entries(self, folder: Path) -> "list[os.DirEntry[str]]":
        """What is in a folder, by name; nothing where it can't be read.

        Raises:
            TooManyFiles: it is enough.
        """
        found = []
        try:
            with os.scandir(folder) as scanned:
                for entry in scanned:
                    found.append(entry)
                    if len(found) > self._left:
                        raise TooManyFiles
        except OSError:
            return []
        self._left -= len(found)
        return sorted(found, key=lambda entry: entry.name)


def gguf_files(folder: Path, depth: int, search: Search | None = None) -> Iterator[Path]:
    """GGUF files in a folder and those in it, by name; hidden ones and companions of models are left out.

    Raises:
        TooManyFiles: `search` gave up.
    """
    search = search or Search()
    entries = search.entries(folder)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.name.endswith(".gguf"):
            if _is(entry.is_file) and not COMPANION.search(entry.name):
                yield Path(entry.path)
        elif depth > 1 and _is(entry.is_dir):
            yield from gguf_files(Path(entry.path), depth - 1, search)


def ollama_manifests(folder: Path) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Each model of ollama's: its name, its manifest's path, and the digests (hex) that it is made of.

    The model's own weights come first among the digests; a manifest without weights is left out.
    """
    root = folder / "manifests"
    for count, path in enumerate(_files_below(root, depth=5)):
        if count >= MAX_MANIFESTS:
            return
        try:
            if path.stat().st_size > MAX_MANIFEST_BYTES:
                continue
            manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
        except (OSError, msgspec.DecodeError, RecursionError):
            continue
        weights = [layer.digest for layer in manifest.layers if layer.mediaType == OLLAMA_MODEL]
        others = [layer.digest for layer in manifest.layers if layer.mediaType != OLLAMA_MODEL]
        digests = [match[1] for match in map(DIGEST.match, weights + others) if match]
        if weights and digests:
            yield _ollama_name(path.relative_to(root).parts), path, tuple(digests)


def _hugging_face(env: Mapping[str, str], cache: Path) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    home = env.get("HF_HOME")
    return (Path(home).expanduser() if home else cache / "huggingface") / "hub"


def _llama_cpp(env: Mapping[str, str], home: Path, cache: Path) -> Path:
    if env.get("LLAMA_CACHE"):
        return Path(env["LLAMA_CACHE"]).expanduser()
    return (home / "Library" / "Caches" if platform.system() == "Darwin" else cache) / "llama.cpp"


def _lm_studio(home: Path) -> Iterator[Path]:
    """Newer releases first; a folder that the person chose in its settings instead of the usual one."""
    base = home / ".lmstudio"
    try:
        pointed = (home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
        base = Path(pointed) if pointed else base
    except (OSError, UnicodeDecodeError):
        pass
    chosen = ""
    with contextlib.suppress(OSError, msgspec.DecodeError, RecursionError):
        chosen = msgspec.json.decode(
            (base / "settings.json").read_bytes(), type=_LMStudioSettings
        ).downloadsFolder
    yield Path(chosen) if chosen else base / "models"
    yield home / ".cache" / "lm-studio" / "models"


def _snapshot_files(folder: Path) -> Iterator[Path]:
    """Files of the snapshot that each repository's `main` is at, then of its older ones."""
    for repository in _folders(folder):
        if not repository.name.startswith("models--"):
            continue
        try:
            latest = (repository / "refs" / "main").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            latest = ""
        snapshots = _folders(repository / "snapshots")
        for snapshot in sorted(snapshots, key=lambda one: (one.name != latest, one.name)):
            yield from gguf_files(snapshot, depth=3)


def _ollama_models(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, _, digests in ollama_manifests(folder):
        blob = folder / "blobs" / f"sha256-{digests[0]}"
        if _is(blob.is_file):
            yield name, blob


def _ollama_name(parts: tuple[str, ...]) -> str:
    """`registry.ollama.ai/library/llama3.2/1b` is what ollama calls llama3.2:1b."""
    *where, model, tag = parts if len(parts) > 1 else ("", *parts)
    if where[:1] == ["registry.ollama.ai"]:
        where = where[1:]
    if where == ["library"]:
        where = []
    return "/".join([*where, f"{model}:{tag}"])


def _files_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if _is(entry.is_file):
            yield entry
        elif depth > 1 and _is(entry.is_dir) and not entry.is_symlink():
            yield from _files_below(entry, depth - 1)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if _is(entry.is_dir))
    except OSError:
        return []


def _is(question: object) -> bool:
    """The answer to `path.is_file` and the like; False where the system refuses one."""
    try:
        return bool(question())  # type: ignore[operator]
    except OSError:
        return False
