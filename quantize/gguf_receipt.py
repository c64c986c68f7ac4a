"""The receipt of a GGUF file, in the file itself: JSON under `edgechat.receipt` in its metadata.

It tells of things that are known only when the file is written, and a longer header would move all data. So
room is kept for it: one text where we write the header, and where llama.cpp does, which takes texts of 127
bytes at most, many in a row that become one. JSON may end in spaces, and these fill what is left.
"""

import json
import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.gguf import GGUFHeader, ValueType, read_header
from models.receipt import KEY, receipt_in
from quantize.formats.gguf import Encoded, OutputTensor, encode

if TYPE_CHECKING:
    from quantize.gguf_evaluation import Evaluation
    from quantize.importance import Made
    from quantize.plan import Target
    from quantize.shares import Share

PIECE = 127
"""Bytes of a text that llama.cpp takes."""
PIECES = 20
ROOM = PIECE * PIECES
VERSION = 1

_N_KEYS_AT = 16
"""Bytes before the count of keys: magic, version, count of tensors."""


def reserved() -> Encoded:
    """Room for the receipt, in a header that we write."""
    return encode(" " * ROOM)


def reserved_pieces() -> tuple[tuple[str, str], ...]:
    """Room for the receipt, in a header that llama.cpp writes: keys that it puts last, in this order."""
    return tuple((name, " " * PIECE) for name in _names())


def _names() -> list[str]:
    """In the order in which llama.cpp is told."""
    return [KEY, *(f"{KEY}.{i}" for i in range(1, PIECES))]


def _size(name: str, n_bytes: int) -> int:
    """Of a key with a text."""
    return 8 + len(name.encode()) + 4 + 8 + n_bytes


PIECES_BYTES = sum(_size(name, PIECE) for name in _names())
"""What that takes in the header."""


def put(path: Path, record: Mapping[str, Any]) -> None:
    """Write the receipt where room was kept for it; what doesn't fit is left out, the last first.

    Raises:
        ValueError: no room was kept: our own fault.
    """
    header = read_header(path)
    names = [name for name in _names() if name in header.fields]
    if not names:
        raise ValueError(f"{path} has no room for a receipt")
    start = at = header.fields[KEY].offset
    for name in names:
        value = header.metadata[name]
        if header.fields[name].offset != at or not isinstance(value, str):
            raise ValueError(f"{path}: the room for the receipt is not in one piece")
        at += _size(name, len(value.encode()))
    room = at - start - _size(KEY, 0)
    text = _fitting(record, room).ljust(room)
    with path.open("rb+") as file:
        file.seek(start)
        key = KEY.encode()
        file.write(struct.pack("<Q", len(key)) + key)
        file.write(struct.pack("<IQ", ValueType.STRING, room) + text)
        file.seek(_N_KEYS_AT)
        file.write(struct.pack("<Q", len(header.fields) - len(names) + 1))


def add_evaluation(path: Path, found: "Evaluation", *, begun: float) -> None:
    """Tell, in the receipt of a finished file, how far it is from its source.

    Args:
        path: the file.
        found: by the comparison.
        begun: when the run began, by the monotonic clock.
    """
    from quantize.receipt import peak_memory

    record = receipt_in(read_header(path)) or {}
    record |= {"seconds": round(time.monotonic() - begun, 3), "peak_memory": peak_memory()}
    put(
        path,
        {**record, "evaluation": found.figures, "error_of": "weights", "layer_errors": found.layer_errors},
    )


def read_layers(path: Path) -> dict[str, Any] | None:
    """The receipt in a file, with the errors of its layers as the receipts of folders have them; None: there
    is none.

    Raises:
        ModelError: the file is damaged, or no GGUF file.
    """
    record = receipt_in(read_header(path))
    if record is None:
        return None
    errors = record.get("layer_errors")
    layers = [
        {"layer": index, "matrices": [{"name": "all matrices", "error": error}]}
        for index, error in enumerate(errors if isinstance(errors, list) else ())
    ]
    return {**record, "layers": layers}


def _fitting(record: Mapping[str, Any], room: int) -> bytes:
    kept = dict(record)
    while True:
        raw = json.dumps(kept, separators=(",", ":")).encode()
        if len(raw) <= room or not kept:
            return raw
        kept.popitem()


def record_of(
    source: Path,
    target: "Target",
    header: GGUFHeader,
    made: "Made | None",
    *,
    begun: float,
) -> dict[str, Any]:
    """What there is to tell of a file.

    Args:
        source: what it was made of.
        target: the type of the file.
        header: the file's.
        made: the importance matrix that it was quantized with.
        begun: when the run began, by the monotonic clock.
    """
    from quantize.receipt import hash_of, peak_memory

    n_parameters = sum(tensor.n_elements for tensor in header.tensors)
    return {
        "version": VERSION,
        "source": {"name": source.resolve().name, "sha256": hash_of(source)},
        "recipe": {"format": "gguf", "type": target.label, "importance_matrix": made is not None},
        "calibration": None if made is None else dict(made.record),
        "versions": _versions(),
        "architecture": header.architecture,
        "parameters": n_parameters,
        "bytes": sum(tensor.n_bytes for tensor in header.tensors),
        "bits_per_weight": round(8 * sum(one.n_bytes for one in header.tensors) / n_parameters, 4),
        "types": {share.type: [share.n_tensors, share.n_bytes] for share in _shares(header)},
        "seconds": round(time.monotonic() - begun, 3),
        "peak_memory": peak_memory(),
    }


def _shares(header: GGUFHeader) -> "tuple[Share, ...]":
    """How many tensors are of which type, and their bytes."""
    from quantize.shares import shares

    return shares(OutputTensor(one.name, one.shape[::-1], one.type) for one in header.tensors)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("edgechat", "llama-cpp-python", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
