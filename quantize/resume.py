"""A run in the making: a folder beside the output, with what each finished layer left.

`state.json` is replaced, flushed and in one step, when a layer is done: it never names what is not there
whole. A run that was killed goes on after the last layer that it names.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from quantize.errors import BadRequest, OutputExists
from quantize.layer_methods import MatrixRecord
from quantize.partial import finish, flush_folder

if TYPE_CHECKING:
    from quantize.calibration import Samples

VERSION = 1


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A finished layer."""

    index: int
    seconds: float
    matrices: tuple[MatrixRecord, ...]


@dataclass(slots=True)
class State:
    """How far a run is."""

    fingerprint: str
    """Of the source, the recipe, the samples and the version: a run goes on only where it is the same."""
    threads: int
    """Sums depend on how many add them up, so that a run goes on with as many."""
    layers: list[LayerRecord] = field(default_factory=list)
    resumed: int = 0
    """How many layers earlier runs had done."""


class Workspace:
    """The folder of a run."""

    def __init__(self, output: Path) -> None:
        """`output`: the folder that the result will be."""
        self.output = output
        self.folder = output.with_name(f".{output.name}.unfinished")
        self.result = self.folder / "result"
        self.replaced = self.folder / "replaced"
        """Where an output that was there before is, until the result has its name."""

    def part(self, index: int) -> Path:
        """The weights of a finished layer."""
        return self.folder / f"layer-{index:03d}.safetensors"

    def read(self) -> State | None:
        """What a stopped run left; None: nothing of use."""
        try:
            raw = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            if raw["version"] != VERSION:
                return None
            return State(
                raw["fingerprint"],
                raw["threads"],
                [
                    LayerRecord(
                        layer["index"],
                        layer["seconds"],
                        tuple(MatrixRecord(**matrix) for matrix in layer["matrices"]),
                    )
                    for layer in raw["layers"]
                ],
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(self, state: State) -> None:
        """Replace the state in one step."""
        record = {
            "version": VERSION,
            "fingerprint": state.fingerprint,
            "threads": state.threads,
            "layers": [
                {
                    "index": layer.index,
                    "seconds": layer.seconds,
                    "matrices": [
                        {"name": one.name, "error": one.error, "note": one.note} for one in layer.matrices
                    ],
                }
                for layer in state.layers
            ],
        }
        write_flushed(self.folder / "state.json", json.dumps(record))

    def keep_samples(self, found: "Samples", key: str) -> None:
        """Keep samples that took long to come by, for a run that goes on."""
        path = self.folder / "samples.npz"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, key=key, tokens=found.tokens, n_chat=found.n_chat, source=found.source)
        finish(partial, path)

    def kept_samples(self, key: str) -> "Samples | None":
        """Those that were kept under the same key; None: there are none."""
        from quantize.calibration import Samples

        try:
            with (self.folder / "samples.npz").open("rb") as file, np.load(file) as kept:
                if str(kept["key"]) != key:
                    return None
                tokens = kept["tokens"]
                digest = hashlib.sha256(tokens.tobytes()).hexdigest()
                return Samples(tokens, int(kept["n_chat"]), str(kept["source"]), digest)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, NotImplementedError):
            return None

    def begin(self, fingerprint: str, threads: int, *, resume: bool, force: bool) -> State:
        """The state to go on from: a stopped run's, or a new one.

        Raises:
            OutputExists: a stopped run is there, and it was not said what shall become of it.
            BadRequest: it was of something else.
        """
        found = self.read()
        if found is not None and found.layers and not resume and not force:
            raise OutputExists(
                f"a run that made {self.output} was stopped after {len(found.layers)} layers: "
                "--resume goes on, --force begins again"
            )
        if resume and found is not None:
            if found.fingerprint != fingerprint:
                raise BadRequest(
                    f"the run in {self.folder} was begun with another source, other settings or another "
                    "version: give the same, or --force instead of --resume to begin again"
                )
            found.resumed = len(found.layers)
            return found
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        return State(fingerprint, threads)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works here.

        Raises:
            BadRequest: somebody does.
        """
        path = self.output.with_name(f".{self.output.name}.lock")
        while True:
            with path.open("a+b") as file:
                if not _lock(file.fileno()):
                    raise BadRequest(f"another run is making {self.output}: wait for it, or give another -o")
                if not _is_at(path, file.fileno()):
                    continue  # its last holder removed it meanwhile: the next one is a new file
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return

    def put_back(self) -> bool:
        """Whether an earlier run died while it took its output's place: the old one is there again."""
        if self.output.exists() or not self.replaced.exists():
            return False
        self.replaced.rename(self.output)
        flush_folder(self.output.parent)
        return True

    def used_bytes(self) -> int:
        """What the folder takes."""
        if not self.folder.is_dir():
            return 0
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def deliver(self) -> None:
        """The result gets its name, in one step, and the rest goes."""
        flush_folder(self.result)
        if self.output.exists():
            self.output.rename(self.replaced)
        self.result.rename(self.output)
        flush_folder(self.output.parent)
        shutil.rmtree(self.folder)


def _lock(descriptor: int) -> bool:
    """Whether the file is now ours; the system gives it back when the process ends, however that comes."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_flushed(path: Path, text: str) -> None:
    """Replace a file in one step, on the disk when this returns."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    flush_folder(path.parent)
