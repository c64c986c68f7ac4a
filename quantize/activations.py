"""What goes from one layer to the next, for all samples: in memory, or where that is short, on the disk.

What a layer leaves is written to a file in any case: that file is where a stopped run goes on.
"""

import math
import os
from pathlib import Path
from typing import BinaryIO

import torch

from quantize.partial import flush_folder
from quantize.resume import damaged


class Activations:
    """Hidden states, float32 [N, S, D], between two layers."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], *, in_memory: bool) -> None:
        """
        Args:
            folder: for the files.
            shape: samples, tokens of each, and numbers of a hidden state.
            in_memory: keep all of them there.
        """
        self.folder = folder
        self.shape = shape
        self._memory = torch.empty(shape) if in_memory else None
        self._source: BinaryIO | None = None
        self._target: BinaryIO | None = None
        self._between: BinaryIO | None = None
        self._layer = 0

    def path(self, layer: int) -> Path:
        """The file of what goes into a layer."""
        return self.folder / f"hidden-{layer:03d}.bin"

    def begin(self, layer: int) -> None:
        """Open what goes into a layer, which `commit` left.

        Raises:
            BrokenWorkspace: it is not there, or not whole.
        """
        self._layer = layer
        path = self.path(layer)
        n_bytes = math.prod(self.shape) * torch.float32.itemsize
        if not path.is_file() or path.stat().st_size != n_bytes:
            raise damaged(path)
        if self._memory is None:
            self.close()
            self._source = path.open("rb")
        else:
            with path.open("rb") as file:
                _read(file, self._memory)

    def get(self, start: int, stop: int) -> torch.Tensor:
        """Samples [start, stop), float32 [stop - start, S, D]."""
        if self._memory is not None:
            return self._memory[start:stop]
        if self._source is None:
            raise RuntimeError("nothing was begun")
        batch = torch.empty((stop - start, *self.shape[1:]))
        self._source.seek(start * batch[0].nbytes)
        _read(self._source, batch)
        return batch

    def put(self, start: int, hidden: torch.Tensor) -> None:
        """What the layer made of samples from `start` on; to be called in their order."""
        hidden = hidden.cpu().contiguous()
        if self._target is None:
            self._target = self._partial.open("wb")
        self._target.write(memoryview(hidden.numpy().reshape(-1).view("uint8")))
        if self._memory is not None:
            self._memory[start : start + len(hidden)] = hidden

    def hold(self, start: int, hidden: torch.Tensor) -> None:
        """What the middle of the layer made of samples from `start` on; to be called in their order.

        Nothing goes on from there: a stopped run begins the layer again.
        """
        if self._memory is not None:
            self._memory[start : start + len(hidden)] = hidden.cpu()
            return
        if self._between is None:
            self._between = self._middle.open("wb")
        self._between.write(memoryview(hidden.cpu().contiguous().numpy().reshape(-1).view("uint8")))

    def turn(self) -> None:
        """All samples are held: they are now what `get` gives."""
        if self._memory is not None:
            return
        if self._between is None:
            raise RuntimeError("nothing was held")
        self._between.close()
        self._between = None
        if self._source is not None:
            self._source.close()
        self._source = self._middle.open("rb")

    def commit(self, layer: int) -> None:
        """All samples are put: they are now what goes into `layer`."""
        if self._target is None:
            raise RuntimeError("nothing was put")
        self._target.flush()
        os.fsync(self._target.fileno())
        self._target.close()
        self._target = None
        self._partial.replace(self.path(layer))
        flush_folder(self.folder)
        self._layer = layer
        if self._memory is None:
            if self._source is not None:
                self._source.close()
            self._source = self.path(layer).open("rb")
            self._middle.unlink(missing_ok=True)

    def forget(self, layer: int) -> None:
        """Delete the file of what went into a layer."""
        self.path(layer).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        for file in (self._source, self._target, self._between):
            if file is not None:
                file.close()
        self._source = self._target = self._between = None

    @property
    def _partial(self) -> Path:
        return self.folder / "hidden.partial"

    @property
    def _middle(self) -> Path:
        return self.folder / "hidden-middle.bin"


def _read(file: BinaryIO, into: torch.Tensor) -> None:
    view = memoryview(into.numpy().reshape(-1).view("uint8"))
    at = 0
    while at < len(view):
        got = file.readinto(view[at:])  # type: ignore[attr-defined]
        if not got:
            raise OSError(f"{file.name} ended early")
        at += got
