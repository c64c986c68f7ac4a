"""What a run that goes layer by layer will take: memory, disk and time, told and checked before it begins."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.companions import companions
from quantize.errors import NotEnoughDisk, NotEnoughMemory
from quantize.layer_memory import BATCH_TOKENS, Memory, Work, comparing_bytes, distinct, memory_of
from quantize.matrices import largest_of, layers_of
from quantize.plan import human
from quantize.recipe import Format, Method

if TYPE_CHECKING:
    from models.checkpoint import StoredTensor
    from models.weights import Weights
    from quantize.layer_request import LayerRequest
    from quantize.resume import Workspace
    from quantize.source import Source

TWICE = 0.7
"""Of a layer's products, those that are computed twice where nothing of what lies between them is kept."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What a run will take."""

    n_layers: int
    group_size: int
    in_memory: bool
    """The states of all samples stay in memory."""
    kept: int
    """Bytes of what lies between a layer's matrices that do too: the rest is computed twice."""
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
    writing_seconds: float = 0.0
    """Of `seconds`, while the model writes its own calibration text."""
    samples: int = 0
    bytes_per_sample: int = 0
    """Of `disk`, for each sample."""

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
                f"way), {human(free)} free: make room for {human(self.disk - free)}, give another place "
                f"with -o{self._fewer_samples(free)}"
            )

    def _fewer_samples(self, free: int) -> str:
        """So many samples as would fit on the disk; nothing where that is none."""
        if not self.bytes_per_sample:
            return ""
        fitting = (free - (self.disk - self.samples * self.bytes_per_sample)) // self.bytes_per_sample
        return f", or take --samples {fitting}" if fitting >= 1 else ""


def make_plan(
    source: "Source", request: "LayerRequest", workspace: "Workspace", *, length: int, evaluated: int = 0
) -> LayerPlan:
    """Reckon what a run will take, from shapes alone and a short trial of how fast this machine is.

    Args:
        source: of the run.
        request: with a group size that is known.
        workspace: of the run.
        length: tokens of a calibration sample.
        evaluated: tokens of the text that the result is compared on; 0: it isn't.
    """
    weights = source.weights
    config, recipe = weights.config, request.recipe
    layers = layers_of(weights)
    tokens = request.samples * length if recipe.reads_text else 0
    own = 0
    if tokens and request.self_seed is not None:
        own = writing_bytes(source, length)
    reads = bool(tokens or evaluated)
    work = Work(recipe, tokens, length, evaluated, tokenizer_bytes(source.folder) if reads else 0, own)
    reckoned = partial(memory_of, config, largest_of(layers), _head_itemsize(source))
    memory = reckoned(work)
    limit = request.max_memory if request.max_memory is not None else request.free_memory()
    in_memory = memory.peak(in_memory=True) <= limit
    kept = memory.room(limit) if in_memory else 0
    if request.max_memory is None:
        kept = min(kept, memory.states)  # more is somebody's wish
    peak = memory.peak(in_memory=in_memory, kept=kept)
    result = _result_bytes(weights, layers, request)
    result += sum(path.stat().st_size for path in companions(source.folder))
    factor = 2 if in_memory else 3
    temporary = 0 if not own or source.path.is_file() else q8_bytes(source)
    disk = max(2 * result + factor * memory.states, temporary) - workspace.used_bytes()
    again = 1 - kept / memory.kept if memory.kept else 0.0
    seconds = _seconds(layers, tokens, recipe.method, again=again)
    writing = _writing_seconds(source, tokens) if own else 0.0
    return LayerPlan(
        n_layers=config.n_layers,
        group_size=recipe.group_size or -1,
        in_memory=in_memory,
        kept=kept,
        memory=peak,
        memory_limit=limit,
        disk=max(disk, 0),
        result=result,
        seconds=seconds + writing,
        writing_seconds=writing,
        advice=_advice(work, reckoned, limit=limit, limited=request.max_memory is not None),
        samples=request.samples if tokens else 0,
        bytes_per_sample=factor * memory.states // request.samples if tokens else 0,
    )


def _advice(work: Work, reckoned: Callable[[Work], Memory], *, limit: int, limited: bool) -> str:
    """What would fit, of what can be asked otherwise; where nothing would, what it would take.

    Args:
        work: that is asked.
        reckoned: its memory.
        limit: bytes to be had.
        limited: because somebody said so.
    """

    def needs(**changes: Any) -> int:
        return reckoned(replace(work, **changes)).peak(in_memory=False)

    least = needs()
    ways: list[tuple[str, int]] = []
    if work.own_text:
        ways.append(("our own text instead of --calibration self", needs(own_text=0)))
    if work.evaluated:
        ways.append(("--no-eval", needs(evaluated=0)))
    if work.length > BATCH_TOKENS:
        ways.append((f"--sequence-length {BATCH_TOKENS}", needs(length=BATCH_TOKENS)))
        ways.append((f"--sequence-length {BATCH_TOKENS} --no-eval", needs(length=BATCH_TOKENS, evaluated=0)))
    rtn = replace(work.recipe, format=Format.GPTQ, method=Method.RTN, bits=4, smooth=False)
    without = {"recipe": rtn, "tokens": 0, "evaluated": 0, "own_text": 0, "tokenizer_bytes": 0}
    ways.append(("--to gptq --method rtn --no-eval", needs(**without)))
    for way, need in ways:
        if need <= limit:
            return f"{way} would take {human(need)}"
    name, need = min(ways, key=lambda one: one[1])
    least, name = min((least, ""), (need, f" with {name}"))
    asked = f"--max-memory {-(-least // 10**6)}MB" if limited else "free that much"
    return f"it takes {human(least)} at least{name}: {asked}, or take a smaller model"


def check_comparison(source: "Source", tokens: int, free: int) -> None:
    """Refuse a comparison of a result with its source that would not fit in memory.

    Args:
        source: which is open.
        tokens: of the text.
        free: bytes that this process may take.

    Raises:
        NotEnoughMemory: with the numbers.
    """
    layer = largest_of(layers_of(source.weights))
    head = _head_itemsize(source)
    needed = comparing_bytes(source.weights.config, layer, head, tokens, tokenizer_bytes(source.folder))
    if needed > free:
        raise NotEnoughMemory(
            f"about {human(needed)} of memory needed to compare with {source.path}, {human(free)} to be had: "
            "free that much"
        )


def tokenizer_bytes(folder: Path) -> int:
    """Of tokenizer.json; 0: there is none."""
    path = folder / "tokenizer.json"
    return path.stat().st_size if path.is_file() else 0


def _head_itemsize(source: "Source") -> int:
    """Bytes of a number of the output matrix."""
    weights = source.weights
    names = weights.names
    name = "model.embed_tokens.weight" if weights.tied else "lm_head.weight"
    stored = weights.checkpoint.tensors.get(name if names is None else names.name(name))
    return 2 if stored is not None and stored.dtype in {"F16", "BF16"} else 4


def q8_bytes(source: "Source") -> int:
    """Of the model in Q8_0."""
    n = sum(tensor.n_elements for tensor in source.weights.checkpoint.tensors.values())
    return n * 34 // 32


def writing_bytes(source: "Source", length: int) -> int:
    """What runs the model while it writes its own samples: weights, keys and values, logits."""
    from quantize.self_calibration import kv_bytes_per_token, parallel

    config = source.weights.config
    model = source.path.stat().st_size if source.path.is_file() else q8_bytes(source)
    count = parallel(kv_bytes_per_token(config), length)
    logits = 2 * 4 * count * config.vocab_size
    compute = 4 * 512 * (3 * config.intermediate_size + 4 * config.hidden_size)
    return model + count * length * kv_bytes_per_token(config) + logits + compute


def _writing_seconds(source: "Source", tokens: int) -> float:
    """llama.cpp's products are about as fast as torch's; a token's draw is a pass over its chances."""
    n = sum(tensor.n_elements for tensor in source.weights.checkpoint.tensors.values())
    return tokens * (2 * n / _speed() * 1.5 + source.weights.config.vocab_size * 1e-8)


def _result_bytes(
    weights: "Weights", layers: list[dict[str, tuple[int, int]]], request: "LayerRequest"
) -> int:
    recipe = request.recipe
    dense = sum(_dense_bytes(tensor) for tensor in weights.checkpoint.tensors.values())
    names = weights.names
    quantized = 0
    for index, layer in enumerate(layers):
        for name, (rows, columns) in layer.items():
            plain = f"model.layers.{index}.{name}.weight"
            stored = weights.checkpoint.tensors.get(plain if names is None else names.name(plain))
            dense -= _dense_bytes(stored) if stored is not None else 0
            size = columns if recipe.group_size in {-1, None} else recipe.group_size or columns
            groups = columns // size
            quantized += rows * columns * recipe.bits // 8 + rows * groups * (16 + recipe.bits) // 8
            quantized += 4 * columns if recipe.format is Format.GPTQ else 0
    return dense + quantized


def _dense_bytes(stored: "StoredTensor") -> int:
    """Of a tensor that is stored as it is."""
    return stored.n_elements * (2 if stored.dtype in {"F16", "BF16"} else 4)


def _seconds(layers: list[dict[str, tuple[int, int]]], tokens: int, method: Method, *, again: float) -> float:
    """By the operations of the products, a share of them done again, at the speed of a short trial."""
    operations = 0.0
    for layer in layers:
        parameters = sum(n * k for n, k in layer.values())
        operations += 2 * parameters * tokens * (1 + TWICE * again)
        operations += sum(k * k for k in distinct(layer)) * tokens * 1.2 if tokens else 0
        if method is not Method.RTN:
            operations += sum(2 * n * k * k for n, k in layer.values()) * 2
        operations += parameters * 20 * 60  # the search for scales
    return operations / _speed()


def _speed() -> float:
    """Operations a second of a product of matrices, if nobody else were at work: by the time that our threads
    computed, which waiting for a core is no part of."""
    import torch

    a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
    best = 1.0
    for _ in range(4):
        begun, computed = time.perf_counter(), time.process_time()
        torch.mm(a, b)
        wall, computed = time.perf_counter() - begun, time.process_time() - computed
        seconds = min(wall, computed / torch.get_num_threads()) or wall
        best = max(best, 2 * 512 * 1024 * 1024 / seconds)
    return best
