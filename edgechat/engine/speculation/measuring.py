"""V(k) of a model on this machine, measured once and kept on disk.

A measurement takes under a second; what it gives is corrected by every step afterwards, so an old one does no
harm. Widths that there was no time for get the shape that V has on most CPUs.
"""

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgechat import hardware, paths
from edgechat.engine.speculation.cost import WIDTHS, CostTable, measure
from edgechat.errors import EdgechatError
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Runtime, Wanted

_log = logging.getLogger(__name__)

SECONDS = 0.7
"""A measurement is to take no longer, but for width 1, without which there is none."""
STEADY = 1.6
"""Where plain steps differed more than this, other programs were at work: measured again when"""
ROUGH_S = 3600.0
"""so many seconds have passed."""
MAX_FILE_BYTES = 2**14

# V(k) / V(1) as it was measured on two AVX2 cores, for 4-bit weights.
TYPICAL = (1.0, 1.4, 1.9, 2.4, 2.7, 3.5, 4.2, 4.8, 5.4, 6.0, 6.4, 6.7, 6.8, 6.9, 6.9, 6.8)

_TEXT = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps until the sun is up again. 0123456789"
)


def step_costs(
    runtime: Runtime,
    folder: str = "",
    *,
    clock: Callable[[], float] = time.perf_counter,
    seconds: float = SECONDS,
    widths: tuple[int, ...] = WIDTHS,
) -> CostTable:
    """V of a runtime that holds nothing yet.

    Args:
        runtime: its sequence 0 is used, and left empty.
        folder: where tables are kept; "" keeps none.
        clock: seconds.
        seconds: about how long a measurement may take.
        widths: of batches, in the order of importance; (1,) for a draft model.
    """
    path = Path(folder) / f"{_key(runtime, widths)}.json" if folder else None
    rough = None if path is None else path.with_suffix(".rough.json")
    table = None if path is None else _read(path)
    if table is None and rough is not None and _age(rough) < ROUGH_S:
        table = _read(rough)
    if table is None:
        table, steady = _measure(runtime, clock, seconds, widths)
        keep = path if steady else rough
        if keep is not None:
            _write(keep, table)
    return completed(table, max(widths))


def completed(table: CostTable, longest: int = len(TYPICAL)) -> CostTable:
    """`table` up to `longest`, with what was not measured in the usual shape."""
    last = table.widths[-1]
    scale = table.seconds[-1] / TYPICAL[min(last, len(TYPICAL)) - 1]
    more = range(last + 1, min(longest, len(TYPICAL)) + 1)
    return CostTable(
        (*table.widths, *more), (*table.seconds, *(scale * TYPICAL[width - 1] for width in more))
    )


def _measure(
    runtime: Runtime, clock: Callable[[], float], seconds: float, widths: tuple[int, ...]
) -> tuple[CostTable, bool]:
    """The table, and whether the machine was at rest."""
    tokens = runtime.tokenizer.encode(_TEXT, special=False)
    tokens = tokens * (1 + max(widths) // len(tokens))
    plain: list[float] = []

    def run(width: int) -> float:
        started = clock()
        rows = runtime.decode([Chunk(0, tokens[:width], 0, Wanted.ALL)])
        rows.argmax(axis=1)  # as the sampler will, at least
        took = max(clock() - started, 1e-7)
        runtime.free(0)
        if width == 1:
            plain.append(took)
        return took

    try:
        widths = tuple(width for width in widths if width <= min(runtime.n_batch, runtime.n_ctx))
        table = measure(run, widths, seconds)
    finally:
        with contextlib.suppress(ValueError):
            runtime.free(0)
    settled = plain[1:]
    return table, max(settled) <= STEADY * min(settled)


def _key(runtime: Runtime, widths: tuple[int, ...]) -> str:
    """The name of a table's file: the model, the threads, the machine."""
    info = runtime.info
    cpu = hardware.cpu()
    parts = (
        info.fingerprint, info.backend, info.n_gpu_layers, info.n_threads, cpu.name, sorted(cpu.features),
        cpu.physical_cores, max(widths), info.mapped, 2,
    )  # fmt: skip
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _read(path: Path) -> CostTable | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=CostTable)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def _age(path: Path) -> float:
    """Seconds since a file was written."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return math.inf


def _write(path: Path, table: CostTable) -> None:
    """Keep a table; where that fails, the next load measures again."""
    try:
        paths.private_folder(path.parent)
        paths.write_atomic(path, msgspec.json.encode(table))
    except (OSError, EdgechatError) as error:
        _log.warning("the table of costs is not kept: %s", error)


def draft_seconds(runtime: Runtime, folder: str = "") -> float | None:
    """Seconds of a draft model's step; None where it can't compute one."""
    try:
        return step_costs(runtime, folder, seconds=0.2, widths=(1,)).seconds[0]
    except (DecodeFailed, ContextFull, ValueError) as error:
        _log.warning("the draft model failed: %s", error)
        return None
