"""A run in the making: a folder beside the output, with what each finished layer left.

`state.json` is replaced, flushed and in one step, when a layer is done: it never names what is not there
whole. A run that was killed goes on after the last layer that it names.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from quantize.errors import BadRequest, BrokenWorkspace, NotEnoughDisk, OutputExists
from quantize.partial import finish, flush_folder

if TYPE_CHECKING:
    from quantize.calibration import Samples

VERSION = 2
SUMS = "imatrix"
"""What the file of a finished layer ends in that nothing is quantized in: what an importance matrix takes."""

BEGINS_ANEW = "there is no stopped run to go on with: this one begins anew"


@dataclass(frozen=True, slots=True)
class MatrixRecord:
    """How well a matrix went, for the receipt."""

    name: str
    error: float
    """Mean square error over mean square: of its outputs where text was read, else of its weights."""
    note: str = ""
    keeps_inputs: bool = False
    """Its inputs are not rounded, though the scheme rounds others."""


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A finished layer."""

    index: int
    seconds: float
    matrices: tuple[MatrixRecord, ...] = ()
    """What came of each; none where nothing was quantized."""


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
    samples: int = 0
    """How many were run through the whole model, for an importance matrix."""
    importance: Mapping[str, Any] | None = None
    """What there is to tell of the importance matrix, when it is whole."""
    n_layers: int = field(default=0, compare=False)
    """Of the model; 0: not known. It is not written."""

    @property
    def reached(self) -> str:
        """What is done, in words; "" where nothing is."""
        if self.importance is not None:
            return "its importance matrix was made"
        if self.layers:
            of = f" of {self.n_layers}" if self.n_layers else ""
            return f"{len(self.layers)}{of} layers"
        return f"{self.samples} samples" if self.samples else ""


class Workspace:
    """The folder of a run."""

    def __init__(self, output: Path) -> None:
        """`output`: the folder or the file that the result will be."""
        self.output = output
        self.folder = output.with_name(f".{output.name}.unfinished")
        self.lock = output.with_name(f".{output.name}.lock")
        self.result = self.folder / "result"
        self.replaced = self.folder / "replaced"
        """Where an output that was there before is, until the result has its name."""

    def part(self, index: int, suffix: str = "safetensors") -> Path:
        """What a finished layer became: its weights, or another file."""
        return self.folder / f"layer-{index:03d}.{suffix}"

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
                samples=raw["samples"],
                importance=None if raw["importance"] is None else dict(raw["importance"]),
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
                        {
                            "name": one.name,
                            "error": one.error,
                            "note": one.note,
                            "keeps_inputs": one.keeps_inputs,
                        }
                        for one in layer.matrices
                    ],
                }
                for layer in state.layers
            ],
            "samples": state.samples,
            "importance": None if state.importance is None else dict(state.importance),
        }
        write_flushed(self.folder / "state.json", json.dumps(record))

    def keep_samples(self, found: "Samples", key: str) -> None:
        """Keep samples that took long to come by, for a run that goes on."""
        path = self.folder / "samples.npz"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, key=key, tokens=found.tokens, n_chat=found.n_chat, source=found.source)
        finish(partial, path)

    def reached(self, state: State | None) -> str:
        """What a run of that state could go on from, in words; "" where it is nothing."""
        if state is None:
            return ""
        return state.reached or ("its calibration text was written" if self.has_samples else "")

    @contextmanager
    def kept_when_stopped(self, state: Callable[[], State | None]) -> Iterator[None]:
        """The folder stays only where there is something to go on from. What ends a run from without, Ctrl-C,
        a signal that ends the program, a disk that is full, gets a note of that (PEP 678).

        Args:
            state: tells how far the run is; None: not begun.
        """
        try:
            yield
        except BaseException as stop:
            reached = self.reached(state())
            if reached and isinstance(stop, (KeyboardInterrupt, SystemExit, OSError, NotEnoughDisk)):
                stop.add_note(
                    f"stopped after {reached}, kept in {self.folder}: the same command with --resume goes on"
                )
            elif not reached and state() is not None:
                self.remove()
            raise

    @property
    def has_samples(self) -> bool:
        """Samples are kept, under whatever key."""
        return (self.folder / "samples.npz").exists()

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
        found = self.stopped(fingerprint, resume=resume, force=force)
        return self.begin_anew(fingerprint, threads) if found is None else found

    def stopped(self, fingerprint: str, *, resume: bool, force: bool) -> State | None:
        """The state of a stopped run that this one goes on with; None: there is none, or not to go on with.

        Raises:
            OutputExists: a stopped run is there, and it was not said what shall become of it.
            BadRequest: it was of something else.
        """
        found = self.read()
        if found is None:
            return None
        if not resume:
            if found.reached and not force:
                raise OutputExists(
                    f"a run that made {self.output} was stopped after {found.reached}: "
                    "--resume goes on, --force begins again"
                )
            return None
        if found.fingerprint != fingerprint:
            raise BadRequest(
                f"the run in {self.folder} was begun with another source, other settings or another "
                "version: give the same, or --force instead of --resume to begin again"
            )
        found.resumed = len(found.layers)
        return found

    def begin_anew(self, fingerprint: str, threads: int) -> State:
        """A new state, in an empty folder."""
        self.remove()
        self.folder.mkdir()
        return State(fingerprint, threads)

    def remove(self) -> None:
        """The folder and all that is in it, if it is there."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works here.

        Raises:
            BadRequest: somebody does.
        """
        while True:
            with self.lock.open("a+b") as file:
                if not _lock(file.fileno()):
                    raise BadRequest(f"another run is making {self.output}: wait for it, or give another -o")
                if not _is_at(self.lock, file.fileno()):
                    continue  # its last holder removed it meanwhile: the next one is a new file
                try:
                    yield
                finally:
                    self.lock.unlink(missing_ok=True)
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
        self.remove()


def damaged(path: Path) -> BrokenWorkspace:
    """What to say where a file of the workspace is missing, or is not what was written there."""
    return BrokenWorkspace(
        f"what the stopped run left can't be used: {path} is missing or damaged; give --force instead of "
        "--resume to begin again"
    )


def hash_of_files(read: Iterable[Path], looked_at: Iterable[Path]) -> str:
    """Of a source: small files by what they hold, large ones by their names, sizes and times."""
    parts = [
        *(hashlib.sha256(path.read_bytes()).hexdigest() for path in read),
        *(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(looked_at)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


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
