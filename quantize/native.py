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
MAX_BUFFER_BYTES = 2**27  # of rows in float32 at once; its own default is 8 GiB, a whole embedding

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
    code: int = llama_cpp.llama_model_quantize(
        os.fsencode(order.source), os.fsencode(order.output), ctypes.byref(params)
    )
    return code


def _overrides(types: Iterable[tuple[str, int]]) -> "ctypes.Array[Any]":
    """As llama.cpp takes them: patterns that each match one whole name, and an empty one at the end."""
    import llama_cpp

    named = [(f"^{_NOT_IN_WORDS.sub(_escaped, name)}$".encode(), kind) for name, kind in types]
    return (llama_cpp.llama_model_tensor_override * (len(named) + 1))(*named, (None, 0))


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]


def exact_types(
    source: Path, ftype: int, *, requantize: bool, types: tuple[tuple[str, int], ...] = ()
) -> dict[str, Tensor]:
    """What each tensor of a GGUF file would become: a dry run, which reads the header alone.

    Args:
        source: the file.
        ftype: `llama_ftype`'s number.
        requantize: the source may be quantized already.
        types: as in an `Order`.

    Raises:
        NativeFailure: llama.cpp refused.
    """
    tensors: dict[str, Tensor] = {}

    def keep(tensor: Tensor) -> None:
        tensors[tensor.name] = tensor

    run(Order(str(source), "", ftype, 1, requantize, dry_run=True, types=types), keep)
    return tensors


if __name__ == "__main__":
    sys.exit(main())
