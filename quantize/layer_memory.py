"""How much memory a run that goes layer by layer takes: its parts, and the one that takes most.

The constants were fitted to measured peaks of resident memory (Linux, x86-64, glibc, torch 2.13 on the CPU).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantize.recipe import Format, Method

if TYPE_CHECKING:
    from models.config import ModelConfig
    from quantize.recipe import Recipe

LIBRARIES = 235 * 10**6
"""Python, torch, the command line, and all that is imported with them."""
KERNELS = 45 * 10**6
"""What torch's kernels and threads set aside when they first compute."""
TOKENIZER = 9.5
TOKENIZER_READ = 11.0
"""Of the size of tokenizer.json: once it is read, and while it is."""
BATCH_TOKENS = 2048
"""That go through a layer at once: enough for the cores, and what lies between is small."""
CHUNK_BYTES = 16 * 2**20
"""Of rows that are read at once."""
SCORED_BYTES = 4 * 2**22
"""Of the logits of each model that are compared at once."""
SCORED_COPIES = 4.0
"""Of them at once: those of both models, and what lies between them."""
HEAD_CHUNK = 8192
"""Rows of the output matrix that are in float32."""
HOLES = 55 * 10**6
"""Freed memory that stays with the process while samples go through layers: 25 MB more or less, by chance."""
RANGES = 35 * 10**6
"""What AWQ's search for ranges holds at once: `quantize.methods.ranges`."""
SAMPLE_TOKENS = 4096
"""Of each input, that W8A8 keeps: `quantize.methods.sampling`."""
SAMPLE_COPIES = 10
"""Of the widest sample, while scales are searched for it: five at once (`quantize.methods.smoothing`), and
freed ones that stay with the process, as measured on SmolLM2."""
SAMPLER = 60 * 10**6
"""Python and llama.cpp, in the process that writes samples."""

Shapes = Mapping[str, tuple[int, int]]
"""Of a layer's matrices: [rows, columns]."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of a run, as far as memory depends on it."""

    recipe: "Recipe"
    tokens: int
    """Of the calibration samples; 0: none."""
    length: int
    """Of a sample."""
    evaluated: int
    """Tokens of the text that the result is compared on; 0: it isn't."""
    tokenizer_bytes: int
    """Of tokenizer.json; 0: none is read."""
    own_text: int = 0
    """Bytes of what runs the model to write its own samples; 0: it doesn't."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the whole process while it does one thing after the other."""

    reading: int
    """The tokenizer is read."""
    writing: int
    """The model writes its own samples: both processes."""
    layers: int
    """A layer is quantized; all but what `states` and `kept` say."""
    comparing: int
    """The result is compared with its source."""
    states: int
    """Of all samples between two layers, where they stay in memory."""
    kept: int
    """What lies between a layer's matrices, all of it."""

    def peak(self, *, in_memory: bool, kept: int = 0) -> int:
        """The most of it, where so much of what lies between a layer's matrices is kept."""
        layers = self.layers + (self.states if in_memory else 0) + kept
        return max(self.reading, self.writing, layers, self.comparing)

    def room(self, limit: int) -> int:
        """How much of what lies between a layer's matrices can be kept, the states being in memory."""
        return max(0, min(self.kept, limit - self.layers - self.states))


def memory_of(config: "ModelConfig", layer: Shapes, itemsize: int, work: Work) -> Memory:
    """Reckon.

    Args:
        config: of the model.
        layer: the largest layer's matrices.
        itemsize: bytes of a number of the output matrix, as it is stored.
        work: what is asked.
    """
    base, dense = _base(work.tokenizer_bytes), _dense(layer)
    widest = max(k for name, (_, k) in layer.items() if ".experts." not in name or not config.layout.fused)
    looks = _looks(layer, work) if work.tokens else 0
    solving = max(_solving(layer, work.recipe), _smoothing(layer, work))
    batch = _batch(config, layer, max(BATCH_TOKENS, work.length)) if work.tokens else 0
    packed = dense * work.recipe.bits // 32
    holes = HOLES if work.tokens else 0
    layers = base + KERNELS + holes + dense + packed + looks + max(solving, batch, CHUNK_BYTES)
    comparing = 0
    if work.evaluated:
        comparing = comparing_bytes(config, layer, itemsize, work.evaluated, work.tokenizer_bytes)
    return Memory(
        reading=LIBRARIES + int(TOKENIZER_READ * work.tokenizer_bytes),
        writing=base + SAMPLER + work.own_text if work.own_text else 0,
        layers=layers,
        comparing=comparing,
        states=4 * work.tokens * config.hidden_size,
        kept=4 * work.tokens * widest if _keeps(work) else 0,
    )


def comparing_bytes(
    config: "ModelConfig", layer: Shapes, itemsize: int, tokens: int, tokenizer_bytes: int
) -> int:
    """Of the whole process while a result is compared with its source, on so many tokens; the rest is as for
    `memory_of`."""
    hidden = config.hidden_size
    compared = 2 * 4 * tokens * hidden
    largest = max(4 * n * k for n, k in layer.values())
    running = _dense(layer) + 2 * largest + _batch(config, layer, BATCH_TOKENS)
    heads = 2 * itemsize * config.vocab_size * hidden + 2 * 4 * HEAD_CHUNK * hidden
    scored = max(SCORED_BYTES, 16 * 4 * config.vocab_size)
    scoring = compared // 2 + heads + int(SCORED_COPIES * scored)
    return _base(tokenizer_bytes) + KERNELS + compared + max(running, scoring)


def passing_bytes(
    config: "ModelConfig", layer: Shapes, tokens: int, length: int, tokenizer_bytes: int
) -> int:
    """Of the whole process while samples of one length, so many tokens in all, go through layers in which
    nothing is quantized."""
    batch = _batch(config, layer, max(BATCH_TOKENS, length))
    states = 4 * tokens * config.hidden_size
    return _base(tokenizer_bytes) + KERNELS + HOLES + _dense(layer) + max(batch, CHUNK_BYTES) + states


def _base(tokenizer_bytes: int) -> int:
    """Before anything is computed."""
    return LIBRARIES + int(TOKENIZER * tokenizer_bytes)


def _dense(layer: Shapes) -> int:
    """Of a layer in float32."""
    return 4 * sum(n * k for n, k in layer.values())


def _keeps(work: Work) -> bool:
    return work.recipe.method is Method.GPTQ and not work.recipe.rounds_inputs


def _looks(layer: Shapes, work: Work) -> int:
    """Of the inputs' Hessians: GPTQ has two at a time, the others all of a layer. W8A8 keeps samples, too."""
    sizes = sorted((4 * k * k for k in distinct(layer)), reverse=True)
    if work.recipe.rounds_inputs:
        inputs = distinct(layer)
        twice = 2 * _sampled(work)  # until every other token is dropped
        return sum(sizes) + 4 * twice * (sum(inputs) + max(inputs))
    experts = any(".experts." in name for name in layer)
    return sum(sizes[:2]) if work.recipe.method is Method.GPTQ and not experts else sum(sizes)


def _solving(layer: Shapes, recipe: "Recipe") -> int:
    """Of the largest matrix, or group of them, and of what is needed to find its integers."""
    found = 0
    for rows, columns in groups(layer):
        matrix, square = 4 * rows * columns, 4 * columns * columns
        if recipe.method is Method.GPTQ:
            need = 3 * square + 4 * matrix + matrix // 4
        elif recipe.format is Format.AWQ:
            need = RANGES + 2 * square + 4 * matrix
        else:
            need = 4 * matrix
        found = max(found, need)
    return found


def _sampled(work: Work) -> int:
    """Tokens of which W8A8 keeps what goes into each matrix."""
    return min(SAMPLE_TOKENS, work.tokens)


def _smoothing(layer: Shapes, work: Work) -> int:
    """Of the widest sample, while scales are searched for it."""
    return SAMPLE_COPIES * 4 * _sampled(work) * max(distinct(layer)) if work.recipe.smooth else 0


def _batch(config: "ModelConfig", layer: Shapes, tokens: int) -> int:
    """What lies between a layer's matrices for the tokens that go through at once."""
    inner = max(n for n, _ in layer.values())
    attention = 2 * (config.q_size + 2 * config.kv_size)
    return 4 * tokens * (max(3 * inner, attention) + 4 * config.hidden_size)


def distinct(layer: Shapes) -> list[int]:
    """The columns of each input that a layer has: queries, keys and values share theirs, gate and up too."""
    shared = ("k_proj", "v_proj", "up_proj")
    return [columns for name, (_, columns) in layer.items() if not name.endswith(shared)]


def groups(layer: Shapes) -> list[tuple[int, int]]:
    """Matrices that see the same input, in one: [rows, columns]."""
    found: dict[str, tuple[int, int]] = {}
    for name, (rows, columns) in layer.items():
        place, _, kind = name.rpartition(".")
        kind = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}.get(kind, kind)
        before = found.get(f"{place}.{kind}", (0, columns))[0]
        found[f"{place}.{kind}"] = (before + rows, columns)
    return list(found.values())
