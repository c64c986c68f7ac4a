"""What a run that makes a GGUF file keeps of its importance matrix, which may take longer than all the rest.

Finished layers or samples are kept while it is made, and the whole of it until the result has its name.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from json import dumps
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from quantize import kept_sums
from quantize.calibration import bundled, from_file
from quantize.devices import usable_cores
from quantize.imatrix import ImportanceMatrix
from quantize.partial import finish
from quantize.resume import (
    BEGINS_ANEW,
    SUMS,
    State,
    Workspace,
    damaged,
    hash_of_files,
)

if TYPE_CHECKING:
    from models.checkpoint import GGUFCheckpoint, SafetensorsCheckpoint
    from quantize.importance import Say, Wanted
    from quantize.request import Request

NAMES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip
"""Of a checkpoint's folder, what decides about the samples, the layers and the result's metadata."""

EMBEDDING = "token_embd.weight"


class MatrixWorkspace:
    """Of one run."""

    def __init__(
        self,
        request: "Request",
        output: Path,
        checkpoint: "GGUFCheckpoint | SafetensorsCheckpoint",
        say: "Say",
    ) -> None:
        """
        Args:
            request: of the run.
            output: of the run.
            checkpoint: its source.
            say: is told in a sentence whether the run goes on with a stopped one.
        """
        self.workspace = Workspace(output)
        self.threads = request.threads or usable_cores()
        """To compute with: as many as the run had that was stopped."""
        self._request = request
        self._checkpoint = checkpoint
        self._say = say
        self._state: State | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Nobody else makes this output. Afterwards the workspace is gone, unless the run was stopped and has
        something done.

        Raises:
            OutputExists: a stopped run is there, and it was not said what shall become of it.
            BadRequest: it was of something else, or another run is under way.
        """
        request, workspace = self._request, self.workspace
        may_keep = request.importance is not None and not request.is_direct
        if not may_keep and not workspace.folder.exists() and not workspace.lock.exists():
            self._say_if_nothing_is_there()
            yield
            return
        with workspace.locked():
            fingerprint = self._fingerprint if request.resume and workspace.folder.exists() else ""
            self._state = workspace.stopped(fingerprint, resume=request.resume, force=request.force)
            if self._state is not None:
                self.threads = self._state.threads
            self._say_if_nothing_is_there()
            with workspace.kept_when_stopped(lambda: self._state):
                yield
            workspace.remove()

    def begin(self) -> State:
        """How far the run is: as the stopped one was, or at its beginning."""
        if self._state is None:
            self._state = self.workspace.begin_anew(self._fingerprint, self.threads)
            self.workspace.write(self._state)
        return self._state

    def sampled(self, done: int) -> None:
        """So many samples were run through the whole model, and what came of them is kept."""
        state = self.begin()
        if done != state.samples:
            state.samples = done
            self.workspace.write(state)

    def keep(self, matrix: ImportanceMatrix, record: Mapping[str, Any]) -> None:
        """The importance matrix is whole: keep it, and nothing else of it."""
        state = self.begin()
        partial = self._path.with_suffix(".partial")
        matrix.store(partial)
        finish(partial, self._path)
        state.importance = record
        self.workspace.write(state)
        for layer in state.layers:
            self.workspace.part(layer.index, SUMS).unlink(missing_ok=True)
        kept_sums.path_of(self.workspace).unlink(missing_ok=True)

    @property
    def is_whole(self) -> bool:
        """The stopped run had made its importance matrix."""
        return self._state is not None and self._state.importance is not None

    def kept(self) -> tuple[ImportanceMatrix, Mapping[str, Any]] | None:
        """The importance matrix that was made, and what there is to tell of it; None: it is not whole.

        Raises:
            BrokenWorkspace: it is damaged.
        """
        if self._state is None or self._state.importance is None:
            return None
        try:
            matrix = ImportanceMatrix.read(self._path)
        except (FileNotFoundError, ModelError):
            raise damaged(self._path) from None
        return replace(matrix, path=None), self._state.importance

    def holds(self, file: Path) -> bool:
        """Whether a file is the importance matrix that is kept."""
        return file.read_bytes() == self._path.read_bytes()

    def bytes_needed(self, shapes: Mapping[str, tuple[int, ...]], tokens: int) -> tuple[int, int]:
        """At most what it takes on the disk beyond what it has: the samples' states, and sums.

        Args:
            shapes: of the model's matrices, rows first, by their names in a GGUF file.
            tokens: of all samples.
        """
        layers = [shape for name, shape in shapes.items() if name.startswith("blk.")]
        columns = sum(prod(shape[:-2]) * shape[-1] for shape in layers)
        # In float64, the old and the new; then whole, and once more for llama.cpp's process.
        sums = 2 * 8 * columns + 2 * 4 * columns
        states = 0
        if self.by_torch and EMBEDDING in shapes:
            states = 2 * 4 * tokens * shapes[EMBEDDING][-1]  # what goes into a layer, and what comes out
        there = self.workspace.used_bytes()
        return max(0, states - there), max(0, sums - max(0, there - states))

    @property
    def by_torch(self) -> bool:
        """Whether the samples go through layer after layer."""
        wanted = self._request.importance
        return (
            self._request.source.is_dir()
            and wanted is not None
            and wanted.self_seed is None
            and find_spec("torch") is not None
            and find_spec("tokenizers") is not None
        )

    @property
    def _path(self) -> Path:
        return self.workspace.folder / "whole.imatrix"

    @property
    def _is_of_use(self) -> bool:
        """Another run would have less to do."""
        return bool(self.workspace.reached(self._state))

    def _say_if_nothing_is_there(self) -> None:
        if self._request.resume and not self._is_of_use:
            self._say(BEGINS_ANEW)

    @cached_property
    def _fingerprint(self) -> str:
        """Of all that decides about the result."""
        from quantize.layers import quantizer

        request = self._request
        files = {tensor.file for tensor in self._checkpoint.tensors.values()}
        folder = request.source
        small = [folder / name for name in NAMES if (folder / name).is_file()]
        wanted = request.importance
        parts = [
            quantizer(),
            request.target.name,
            repr(request.wishes),
            None if wanted is None else self._of_matrix(wanted),
            hash_of_files(small, files),
        ]
        return sha256(dumps(parts).encode()).hexdigest()

    def _of_matrix(self, wanted: "Wanted") -> list[str | int | None]:
        """What decides about the importance matrix."""
        device = ""
        if self.by_torch:
            from quantize.devices import usable_device

            device = usable_device(wanted.device)
        text = bundled() if wanted.calibration is None else from_file(wanted.calibration)
        return [
            None if wanted.file is None else str(wanted.file.absolute()),
            text.name,
            text.sha256,
            wanted.self_seed,
            wanted.samples,
            wanted.length,
            device,
        ]
