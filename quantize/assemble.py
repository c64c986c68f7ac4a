"""The parts of a run become a checkpoint: weights in one file or in shards, configuration, tokenizer."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import safetensors
from models.checkpoint import PLAIN, SINGLE, StoredTensor
from models.errors import BrokenModelFile
from models.json_file import read_json
from models.weights import Weights
from quantize.companions import companions
from quantize.formats.safetensors import header_bytes, join, write_index
from quantize.partial import finish
from quantize.resume import Workspace, write_flushed
from quantize.tensors import row_ranges

FLOATS = frozenset({"F32", "F16", "BF16"})
SHARD_BYTES = 5 * 10**9
REST = "rest.safetensors"

STALE = ("quantization_config", "compression_config")


def assemble(source: Path, weights: Weights, workspace: Workspace, files: dict[str, dict[str, Any]]) -> Path:
    """Make the result's folder inside the workspace; it has no receipt yet.

    Args:
        source: the checkpoint's folder.
        weights: of the source.
        workspace: with all parts: the layers', and what `keep_rest` kept.
        files: JSON files of the method; config.json is added to the source's.

    Returns:
        The folder.
    """
    result = workspace.result
    if result.exists():
        shutil.rmtree(result)
    result.mkdir()
    rest = workspace.folder / REST
    parts = [workspace.part(index) for index in range(weights.config.n_layers)]
    _weights(result, [rest, *parts])
    config = {key: value for key, value in read_json(source / "config.json").items() if key not in STALE}
    for name, content in files.items():
        merged = {**config, **content} if name == "config.json" else content
        write_flushed(result / name, json.dumps(merged, indent=2, ensure_ascii=False) + "\n")
    _copy_companions(source, result)
    return result


def keep_rest(weights: Weights, workspace: Workspace) -> None:
    """Keep all that is no decoder layer and stays as it is: embedding, last norm, output matrix, and parts
    that see. Nothing is done where a stopped run did.

    Args:
        weights: of the source.
        workspace: of the run.

    Raises:
        BrokenModelFile: NaN or infinity in one of them, which no text may come by.
    """
    path = workspace.folder / REST
    if path.exists():
        return
    partial = path.with_suffix(".partial")
    _write_rest(weights, partial)
    finish(partial, path)


def _write_rest(weights: Weights, path: Path) -> None:
    names = weights.names
    if names is None:
        raise TypeError("a GGUF file")
    prefixes = tuple(names.name(f"model.layers.{index}.") for index in range(weights.config.n_layers))
    rest = [
        (name, stored)
        for name, stored in sorted(weights.checkpoint.tensors.items())
        if not name.startswith(prefixes)
    ]
    entries = [(name, *stored_form(stored)) for name, stored in rest]
    with path.open("wb") as file:
        file.write(header_bytes(entries))
        for _, stored in rest:  # an embedding may be larger than all else that is in memory
            for start, stop in row_ranges(stored, 1):
                rows = _rows(weights, stored, start, stop)
                if (
                    stored.dtype in FLOATS
                    and not np.isfinite(weights.checkpoint.rows(stored.name, start, stop)).all()
                ):
                    raise BrokenModelFile(
                        f"{weights.checkpoint.path}: {stored.name} holds NaN or infinity: "
                        "get the checkpoint again"
                    )
                file.write(rows.reshape(-1).view(np.uint8).data)


def stored_form(stored: StoredTensor) -> tuple[str, list[int], int]:
    """The dtype, shape and size that a tensor of the source keeps: see `streaming.as_stored`."""
    dtype = stored.dtype if stored.type in PLAIN else "F32"
    return dtype, list(stored.shape), stored.n_elements * safetensors.ITEM_BYTES[dtype]


def _rows(weights: Weights, stored: StoredTensor, start: int, stop: int) -> npt.NDArray[np.generic]:
    read = weights.checkpoint.stored_rows if stored.type in PLAIN else weights.checkpoint.rows
    return np.ascontiguousarray(read(stored.name, start, stop))


def _weights(result: Path, parts: Sequence[Path]) -> None:
    shards: list[list[Path]] = []
    size = 0
    for part in parts:
        n_bytes = part.stat().st_size
        if not shards or size + n_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += n_bytes
    files = [SINGLE]
    if len(shards) > 1:
        files = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for file, members in zip(files, shards, strict=True):
        partial = result / f"{file}.partial"
        join(members, partial)
        finish(partial, result / file)
    if len(files) > 1:
        write_index(result, files)


def _copy_companions(source: Path, result: Path) -> None:
    for path in companions(source):
        shutil.copyfile(path, result / path.name)
        with (result / path.name).open("rb") as file:
            os.fsync(file.fileno())
    more = source / "additional_chat_templates"
    if more.is_dir():
        shutil.copytree(more, result / more.name)
