"""What llama.cpp's log says of layers and of the cache, and how many layers to try next on a GPU."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 2**20
HEADROOM = 256 * MIB
"""Left to the rest of the system."""

KV_SIZE = re.compile(
    r"size\s*=\s*(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,.*K \((?P<k>\w+)\):.*V \((?P<v>\w+)\)"
)
OTHER_SIZE = re.compile(r"(?P<where>\S+)\s+(?P<what>compute|output|RS) buffer size\s*=\s*(?P<mib>[\d.]+) MiB")
OFFLOADED = re.compile(r"offloaded (?P<layers>\d+)/(?P<all>\d+) layers to GPU")
N_LAYER = re.compile(r"(?:\.block_count u32|print_info: n_layer)\s*=\s*(?P<layers>\d+)")


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of memory that a model takes."""

    weights: int
    kv: int
    other: int
    """Compute and output buffers."""
    cells: int
    """Tokens of context that `kv` is for."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.other


def parse(lines: Iterable[str], weights: int) -> Needs | None:
    """The sizes in llama.cpp's log of making a context; None where it doesn't tell."""
    kv = other = 0.0
    cells = 0
    for line in lines:
        if match := KV_SIZE.search(line):
            kv += float(match["mib"])
            cells = max(cells, int(match["cells"]))
        elif match := OTHER_SIZE.search(line):
            other += float(match["mib"])
    if not cells and not other:
        return None
    return Needs(weights, int(kv * MIB), int(other * MIB), cells)


def kv_bytes_per_token(lines: Iterable[str]) -> int | None:
    """Bytes of all caches for one more token of context, from the log; None where it doesn't tell.

    llama.cpp rounds the sizes to 0.01 MiB, so this is within a byte or two of the truth for long contexts.
    """
    needs = parse(lines, 0)
    return round(needs.kv / needs.cells) if needs and needs.cells else None


def offloaded_layers(lines: Iterable[str]) -> int:
    """Layers on GPUs, the output layer counted as one, from the log of loading."""
    for line in lines:
        if match := OFFLOADED.search(line):
            return int(match["layers"])
    return 0


def layer_count(lines: Iterable[str]) -> int | None:
    """Layers of the model, from the log of loading."""
    for line in lines:
        if match := N_LAYER.search(line):
            return int(match["layers"])
    return None


def gpu_attempts(wanted: int, n_layers: int | None, weights: int, free: int) -> list[int]:
    """Numbers of layers to try in turn after all of `wanted` didn't fit; the last is 0.

    Args:
        wanted: what was tried; -1 for all.
        n_layers: layers of the model, None if unknown.
        weights: bytes of the model.
        free: bytes that are free on the GPUs together.
    """
    if not n_layers:
        return [0]
    tried = n_layers + 1 if wanted < 0 else min(wanted, n_layers + 1)
    # A sixth more than its weights for each layer's share of the cache and of the compute buffers.
    each = max(1, weights * 7 // 6 // (n_layers + 1))
    first = min(tried * 4 // 5, free // each) if free else tried * 4 // 5
    attempts: list[int] = []
    while first > 0 and len(attempts) < 5:
        attempts.append(first)
        first = first * 2 // 3
    return [*attempts, 0]
