"""llama.cpp's own quantization, in a process of its own: `python -m quantize.native`."""

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.ggml_types import BLOCKS, GGMLType
from quantize import child

QUANTIZE_PARAMS_BYTES = 64  # of the llama.cpp that the bindings describe
MAX_KEY_BYTES = 127
"""Of a key, and of a text, that llama.cpp takes."""
MAX_BUFFER_BYTES = 2**27  # of rows in float32 at once; its own default is 8 GiB, a whole embedding
PROBED_BYTES = 2**20
"""More than a file system leaves free beside a write that did not fit, in whatever blocks it has."""

_BEGUN = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]\s+(\S+)\s+- \[([\d, ]+)\], type =\s*(\S+),")
_NOT_IN_WORDS = re.compile(r"[^0-9A-Za-z_]")
_BECOMES = re.compile(r"-> .*\((\w+)\)\s*$")


@dataclass(frozen=True, slots=True)
class Order:
    """What llama.cpp shall do."""

    source: str
    output: str
    ftype: int
    threads: int
    requantize: bool
    """The source may be quantized already."""
    dry_run: bool
    """Only say what each tensor would become."""
    types: tuple[tuple[str, int], ...] = ()
    """Tensors by name, and the number of the type that each shall have, whatever `ftype` says. Where a row
    does not fill its blocks, llama.cpp takes another."""
    imatrix: str | None = None
    """A file with an importance matrix."""
    assume_imatrix: bool = False
    """In a dry run: as if there were one, which decides about some types."""
    keys: tuple[tuple[str, str | int], ...] = ()
    """To be added to the metadata: texts of at most 127 bytes in UTF-8, and numbers."""

    def __post_init__(self) -> None:
        for key, value in self.keys:
            if max(len(key.encode()), len(str(value).encode())) > MAX_KEY_BYTES:
                raise ValueError(f"{key} is over {MAX_KEY_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that llama.cpp has begun, or in a dry run: what it becomes."""

    index: int
    """From 1."""
    total: int
    name: str
    n_bytes: int
    """In the source."""
    becomes: GGMLType
    """Its type in the source, unless it is a dry run."""
    n_elements: int

    @property
    def becomes_bytes(self) -> int:
        """In the type that it becomes."""
        block = BLOCKS[self.becomes]
        return self.n_elements // block.elements * block.n_bytes


def run(order: Order, tell: Callable[[Tensor], None]) -> None:
    """Have llama.cpp quantize a file, and hear of each tensor.

    Raises:
        NativeFailure: llama.cpp refused, or its process died; with its last words.
    """

    def hear(message: child.Message) -> None:
        if "tensor" in message:
            tell(_tensor(message["tensor"]))

    child.run("quantize.native", asdict(order), hear, doing=f"quantize {order.source}")


def _tensor(raw: dict[str, Any]) -> Tensor:
    return Tensor(**{**raw, "becomes": GGMLType(raw["becomes"])})


# --- inside the process


class _Log:
    """Puts llama.cpp's log together again, which comes in pieces of lines, and reports what matters."""

    def __init__(self, report: Callable[[dict[str, Any]], None], *, dry_run: bool) -> None:
        self.report = report
        self.dry_run = dry_run
        self.line = ""
        self.begun: Tensor | None = None

    def add(self, level: int, text: str) -> None:
        self.line += text
        match = _BEGUN.match(self.line)
        if match is not None and self.begun is None:
            self.begun = self._tensor(match)
            if not self.dry_run:
                self.report({"tensor": asdict(self.begun)})
        if not self.line.endswith("\n"):
            return
        if self.begun is not None and self.dry_run:
            becomes = _BECOMES.search(self.line)
            tensor = asdict(self.begun)
            if becomes is not None:
                tensor["becomes"] = int(GGMLType[becomes[1].upper()])
            self.report({"tensor": tensor})
        elif match is None and level >= 4 and self.line.strip():  # GGML_LOG_LEVEL_ERROR
            self.report({"words": " ".join(self.line.split())[:500]})
        self.line, self.begun = "", None

    def _tensor(self, match: re.Match[str]) -> Tensor:
        kind = GGMLType[match[5].upper()]
        n_elements = 1
        for n in match[4].split(","):
            n_elements *= int(n)
        block = BLOCKS[kind]
        n_bytes = n_elements // block.elements * block.n_bytes
        return Tensor(int(match[1]), int(match[2]), match[3], n_bytes, kind, n_elements)


def main() -> int:
    """Do the order that stdin brings.

    Returns:
        llama.cpp's own code: 0 where it succeeded.
    """

    def work(job: child.Message, report: child.Tell) -> int:
        order = Order(**job)
        return _quantize(order, _Log(report, dry_run=order.dry_run))

    return child.serve(work)


def _quantize(order: Order, log: _Log) -> int:
    import llama_cpp

    size = ctypes.sizeof(llama_cpp.llama_model_quantize_params)
    if size != QUANTIZE_PARAMS_BYTES:
        log.report({"words": f"its settings have {size} bytes, not {QUANTIZE_PARAMS_BYTES}: another version"})
        return 1

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        log.add(level, text.decode("utf-8", "replace"))

    llama_cpp.llama_log_set(on_log, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = order.threads
    params.ftype = order.ftype
    params.allow_requantize = order.requantize
    params.dry_run = order.dry_run
    params.max_buf_size = MAX_BUFFER_BYTES
    if order.types:
        params.tt_overrides = _overrides(order.types)
    kept: list[Any] = []  # what llama.cpp reads of ours, for as long as it works
    if order.imatrix is not None or order.assume_imatrix:
        params.imatrix = _importance(order.imatrix, kept)
    if order.keys:
        params.kv_overrides = _keys(order.keys)
    code: int = llama_cpp.llama_model_quantize(
        os.fsencode(order.source), os.fsencode(order.output), ctypes.byref(params)
    )
    if code != 0 and not order.dry_run:
        _check_room(Path(order.output))
    return code


def _check_room(output: Path) -> None:
    """Of a file that can't be written llama.cpp says nothing but "iostream error": see what the system says.

    Raises:
        OSError: it takes no more.
    """
    if output.exists():
        with output.open("ab") as file:
            file.write(bytes(PROBED_BYTES))


def _overrides(types: Iterable[tuple[str, int]]) -> "ctypes.Array[Any]":
    """As llama.cpp takes them: patterns that each match one whole name, and an empty one at the end."""
    import llama_cpp

    named = [(f"^{_NOT_IN_WORDS.sub(_escaped, name)}$".encode(), kind) for name, kind in types]
    kind_of_array = llama_cpp.llama_model_tensor_override * (len(named) + 1)
    overrides: ctypes.Array[Any] = kind_of_array(*named, (None, 0))
    return overrides


def _importance(path: str | None, kept: list[Any]) -> "ctypes.Array[Any]":
    """As llama.cpp takes them: a name, numbers and their count each, and an empty one at the end."""
    import llama_cpp

    if path is None:
        numbers = (ctypes.c_float * 1)(1.0)
        entries = [(b"", numbers, 1)]
    else:
        from quantize.imatrix import ImportanceMatrix

        matrix = ImportanceMatrix.read(Path(path))
        entries = []
        for name, entry in matrix.entries.items():
            mean = entry.mean.reshape(-1)
            entries.append((name.encode(), (ctypes.c_float * mean.size).from_buffer(mean.data), mean.size))
    kept.append(entries)
    kind = llama_cpp.llama_model_imatrix_data
    pointer = ctypes.POINTER(ctypes.c_float)
    made = [kind(name, ctypes.cast(numbers, pointer), size) for name, numbers, size in entries]
    kept.append(made)
    array: ctypes.Array[Any] = (kind * (len(made) + 1))(*made, kind(None, None, 0))
    return array


def _keys(keys: Iterable[tuple[str, str | int]]) -> "ctypes.Array[Any]":
    """As llama.cpp takes them, and an empty one at the end. It stores numbers as UINT32."""
    import llama_cpp

    kind = llama_cpp.llama_model_kv_override
    overrides = []
    for key, value in keys:
        override = kind(key=key.encode())
        if isinstance(value, str):
            override.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
            override.value.val_str = value.encode()
        else:
            override.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT
            override.value.val_i64 = value
        overrides.append(override)
    array: ctypes.Array[Any] = (kind * (len(overrides) + 1))(*overrides)
    return array


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]


def exact_types(
    source: Path,
    ftype: int,
    *,
    requantize: bool,
    types: tuple[tuple[str, int], ...] = (),
    imatrix: bool = False,
) -> dict[str, Tensor]:
    """What each tensor of a GGUF file would become: a dry run, which reads the header alone.

    Args:
        source: the file.
        ftype: `llama_ftype`'s number.
        requantize: the source may be quantized already.
        types: as in an `Order`.
        imatrix: as if there were an importance matrix.

    Raises:
        NativeFailure: llama.cpp refused.
    """
    tensors: dict[str, Tensor] = {}

    def keep(tensor: Tensor) -> None:
        tensors[tensor.name] = tensor

    order = Order(str(source), "", ftype, 1, requantize, dry_run=True, types=types, assume_imatrix=imatrix)
    run(order, keep)
    return tensors


if __name__ == "__main__":
    sys.exit(main())
