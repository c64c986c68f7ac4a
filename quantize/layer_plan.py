"""What a run that goes layer by layer will take: memory, disk and time, told and checked before it begins."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantize.errors import NotEnoughDisk, NotEnoughMemory
from quantize.matrices import layer_matrices
from quantize.plan import human
from quantize.recipe import Format, Method

if TYPE_CHECKING:
    from models.weights import Weights
    from quantize.layer_request import LayerRequest
    from quantize.resume import Workspace
    from quantize.source import Source

LIBRARIES = 400 * 10**6
"""Python, torch and what its products need besides."""
BATCH_TOKENS = 2048
RANGES = 130 * 10**6
"""What AWQ's search for ranges holds at once: `quantize.methods.ranges`."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What a run will take."""

    n_layers: int
    group_size: int
    in_memory: bool
    """The states of all samples stay in memory."""
    keeps: bool
    """What lies between a layer's matrices does too, and is not computed twice."""
    memory: int
    """Bytes at the peak, the whole process."""
    memory_limit: int
    disk: int
    """Bytes at the peak, beyond what is there already."""
    result: int
    """Bytes of the result, about."""
    seconds: float
    advice: str
    """What would need less memory."""

    def check(self, folder: Path) -> None:
        """Refuse a run that would not fit.

        Raises:
            NotEnoughMemory: with what would fit.
            NotEnoughDisk: with the numbers.
        """
        if self.memory > self.memory_limit:
            raise NotEnoughMemory(
                f"about {human(self.memory)} of memory needed, {human(self.memory_limit)} to be had: "
                f"{self.advice}"
            )
        free = shutil.disk_usage(folder).free
        if self.disk > free:
            raise NotEnoughDisk(
                f"{folder}: {human(self.disk)} needed ({human(self.result)} for the result, the rest on the "
                f"way), {human(free)} free: make room for {human(self.disk - free)}, or give another place "
                "with -o"
            )


def make_plan(source: "Source", request: "LayerRequest", workspace: "Workspace") -> LayerPlan:
    """Reckon what a run will take, from shapes alone and a short trial of how fast this machine is."""
    weights = source.weights
    config, recipe = weights.config, request.recipe
    layers = [layer_matrices(weights, index) for index in range(config.n_layers)]
    largest = max(layers, key=lambda layer: sum(n * k for n, k in layer.values()))
    parameters = sum(n * k for n, k in largest.values())
    tokens = request.samples * request.length if recipe.reads_text else 0
    states = tokens * config.hidden_size * 4
    widest = max(k for _, k in largest.values())
    distinct = _distinct(largest)
    hessians = sum(k * k * 4 for k in distinct) if recipe.reads_text else 0
    solving = 0
    if recipe.method is Method.GPTQ:
        solving = 2 * widest * widest * 4
    if recipe.method is Method.AWQ:
        solving = RANGES
    rows = max(n * k for n, k in largest.values())
    solving += 6 * rows * 4
    batch = BATCH_TOKENS * (3 * max(n for n, _ in largest.values()) + 8 * config.hidden_size) * 4
    head = 4 * config.vocab_size * config.hidden_size + 8192 * config.hidden_size * 4 + 6 * 4 * 2**23
    base = LIBRARIES + max(parameters * 4 + hessians + max(solving, batch if tokens else 0), head)
    limit = request.max_memory if request.max_memory is not None else request.free_memory()
    in_memory = base + states <= limit
    kept = tokens * 4 * max(k for name, (_, k) in largest.items() if ".experts." not in name)
    keeps = recipe.method is Method.GPTQ and base + states + kept <= limit
    result = _result_bytes(weights, layers, request)
    disk = 2 * result + (2 if in_memory else 3) * states - workspace.used_bytes()
    advice = "fewer or shorter samples don't help here: a smaller model, or a machine with more memory, would"
    if hessians + solving > parameters * 4 and recipe.format is not Format.GPTQ:
        advice = "--to gptq --method rtn needs no Hessians"
    elif hessians:
        advice = "--to gptq --method rtn needs less, and so does a smaller model"
    return LayerPlan(
        n_layers=config.n_layers,
        group_size=recipe.group_size or -1,
        in_memory=in_memory,
        keeps=keeps,
        memory=base + (states if in_memory else 0) + (kept if keeps else 0),
        memory_limit=limit,
        disk=max(disk, 0),
        result=result,
        seconds=_seconds(layers, tokens, recipe.method, keeps=keeps),
        advice=advice,
    )


def _distinct(layer: dict[str, tuple[int, int]]) -> list[int]:
    """The columns of each input that a layer has: queries, keys and values share theirs, gate and up too."""
    shared = ("k_proj", "v_proj", "up_proj")
    return [columns for name, (_, columns) in layer.items() if not name.endswith(shared)]


def _result_bytes(
    weights: "Weights", layers: list[dict[str, tuple[int, int]]], request: "LayerRequest"
) -> int:
    recipe = request.recipe
    dense = sum(tensor.n_bytes for tensor in weights.checkpoint.tensors.values())
    names = weights.names
    quantized = 0
    for index, layer in enumerate(layers):
        for name, (rows, columns) in layer.items():
            plain = f"model.layers.{index}.{name}.weight"
            stored = weights.checkpoint.tensors.get(plain if names is None else names.name(plain))
            dense -= stored.n_bytes if stored is not None else 0
            size = columns if recipe.group_size in {-1, None} else recipe.group_size or columns
            groups = columns // size
            quantized += rows * columns * recipe.bits // 8 + rows * groups * (16 + recipe.bits) // 8
            quantized += 4 * columns if recipe.format is Format.GPTQ else 0
    return dense + quantized


def _seconds(layers: list[dict[str, tuple[int, int]]], tokens: int, method: Method, *, keeps: bool) -> float:
    """By the operations of the products, at the speed of a short trial."""
    operations = 0.0
    for layer in layers:
        parameters = sum(n * k for n, k in layer.values())
        operations += 2 * parameters * tokens * (1 if keeps or method is not Method.GPTQ else 1.7)
        operations += sum(k * k for k in _distinct(layer)) * tokens * 1.2 if tokens else 0
        if method is not Method.RTN:
            operations += sum(2 * n * k * k for n, k in layer.values()) * 2
        operations += parameters * 20 * 60  # the search for scales
    return operations / _speed()


def _speed() -> float:
    """Operations a second of a product of matrices."""
    import torch

    a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
    best = 1e9
    for _ in range(4):
        begun = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * 512 * 1024 * 1024 / (time.perf_counter() - begun))
    return best
