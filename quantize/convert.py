"""Turns a checkpoint into the parts of a GGUF file: metadata, and tensors that are made one by one."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import config as model_config
from models import tokenizer as model_tokenizer
from models.checkpoint import (
    PLAIN,
    Checkpoint,
    Floats,
    GGUFCheckpoint,
    SafetensorsCheckpoint,
    StoredTensor,
    to_float32,
)
from models.config import ModelConfig, RopeKind
from models.errors import BrokenModelFile, UnsupportedModel
from models.families import Change, Family, TensorRule, family_of
from models.families.base import Metadata
from models.ggml_types import BLOCKS, GGMLType
from quantize.errors import BadRequest
from quantize.formats.gguf import Encoded, OutputTensor, copied, encode
from quantize.plan import Target

CHUNK_ELEMENTS = 2**22
"""Numbers that are converted at once: 16 MiB in float32."""

PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""What the decoder's names begin with; the longer ones where it is a part of a model that also sees."""

IGNORED = re.compile(
    r"(rotary_emb\.inv_freq|\.masked_bias|\.attn\.bias)$|^(model\.)?(vision_tower|multi_modal_projector)\."
)
"""Buffers that are computed, and the parts that see."""

Chunks = Iterator[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Job:
    """One tensor of the result, and how its data is made."""

    tensor: OutputTensor
    chunks: Callable[[], Chunks]
    source_bytes: int


@dataclass(frozen=True, slots=True)
class Conversion:
    """A GGUF file in parts."""

    architecture: str
    metadata: Mapping[str, Encoded]
    jobs: tuple[Job, ...]
    n_parameters: int
    notes: tuple[str, ...]

    @property
    def tensors(self) -> list[OutputTensor]:
        """The tensors, in order."""
        return [job.tensor for job in self.jobs]


def from_folder(folder: Path, checkpoint: SafetensorsCheckpoint, target: Target) -> Conversion:
    """A checkpoint as Hugging Face has it.

    Args:
        folder: with config.json and the tokenizer.
        checkpoint: its weights.
        target: the type of the file. Where llama.cpp quantizes afterwards, each matrix keeps the type that it
            has in the source, so that nothing is rounded twice.

    Raises:
        FileNotFoundError: a file is missing.
        BrokenModelFile: a tensor is missing, of a wrong shape, or its type is unknown.
        UnsupportedModel: an architecture, a tokenizer or a quirk that is not supported.
    """
    where = folder / "config.json"
    raw = model_config.read_json(where)
    family = family_of(raw, where)
    config = model_config.parse(raw, family.defaults, where)
    family.check(config)
    source = _Source(folder, checkpoint)
    tied = _is_tied(config, source)
    rules = list(family.tensors(config, tied=tied))
    source.check(rules, tied=tied)
    jobs = [_job(source.checkpoint, source.tensor(rule.source), rule, target) for rule in rules]
    jobs += _rope_jobs(config)
    vocabulary = model_tokenizer.read(folder, config.vocab_size)
    n_parameters = sum(job.tensor.n_elements for job in jobs if job.source_bytes)
    metadata = _metadata(family, config, folder, target, n_parameters) | _vocabulary(vocabulary)
    return Conversion(family.gguf, metadata, tuple(jobs), n_parameters, vocabulary.notes)


def from_gguf(checkpoint: GGUFCheckpoint, target: Target) -> Conversion:
    """A GGUF file, dequantized and written in another type; its metadata is copied.

    Raises:
        UnsupportedModel: a tensor's type can't be dequantized.
    """
    jobs = []
    for stored in checkpoint.tensors.values():
        rule = TensorRule(stored.name, stored.name, stored.shape)
        jobs.append(_job(checkpoint, stored, rule, target))
    metadata = copied(
        checkpoint.header, without=("general.file_type", "general.quantization_version", "split.count",
                                    "split.no", "split.tensors.count"),
    ) | {
        "general.file_type": encode(target.ftype),
        "general.quantization_version": encode(2),
    }  # fmt: skip
    n_parameters = sum(stored.n_elements for stored in checkpoint.tensors.values())
    return Conversion(checkpoint.header.architecture, metadata, tuple(jobs), n_parameters, ())


class _Source:
    """A checkpoint's tensors under the plain decoder's names."""

    def __init__(self, folder: Path, checkpoint: SafetensorsCheckpoint) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        found = [prefix for prefix in PREFIXES if f"{prefix}embed_tokens.weight" in checkpoint.tensors]
        if not found:
            raise BrokenModelFile(f"{folder} has no tensor model.embed_tokens.weight: no complete checkpoint")
        self.prefix = found[0]

    def name(self, plain: str) -> str:
        if plain.startswith("model."):
            return self.prefix + plain.removeprefix("model.")
        for candidate in (plain, f"language_model.{plain}"):
            if candidate in self.checkpoint.tensors:
                return candidate
        return plain

    def tensor(self, plain: str) -> StoredTensor:
        return self.checkpoint.tensors[self.name(plain)]

    def has(self, plain: str) -> bool:
        return self.name(plain) in self.checkpoint.tensors

    def check(self, rules: list[TensorRule], *, tied: bool) -> None:
        """Each tensor is there, of the right shape and of a type that can be read, and no others are."""
        missing = [rule.source for rule in rules if not self.has(rule.source)]
        if missing:
            raise BrokenModelFile(
                f"{self.folder}: {len(missing)} tensors are missing, the first is {missing[0]}"
            )
        for rule in rules:
            stored = self.tensor(rule.source)
            if stored.shape != rule.shape:
                raise BrokenModelFile(
                    f"{stored.file}: {stored.name} has the shape {list(stored.shape)}, config.json makes it "
                    f"{list(rule.shape)}: the files don't belong together"
                )
            if stored.dtype not in {"F32", "F16", "BF16"}:
                raise UnsupportedModel(
                    f"{stored.file}: {stored.name} is of type {stored.dtype}: F32, F16 and BF16 are supported"
                )
        known = {self.name(rule.source) for rule in rules}
        known |= {self.name("lm_head.weight")} if tied else set()
        extra = [name for name in self.checkpoint.tensors if name not in known and not IGNORED.search(name)]
        if extra:
            raise UnsupportedModel(
                f"{self.folder} has {len(extra)} tensors that its architecture has not, such as {extra[0]}"
            )


def _is_tied(config: ModelConfig, source: _Source) -> bool:
    """Whether the output matrix is the embedding: said so, and no other one is in the files."""
    if not config.tied:
        return False
    if not source.has("lm_head.weight"):
        return True
    embedding, head = source.tensor("model.embed_tokens.weight"), source.tensor("lm_head.weight")
    if embedding.shape != head.shape or embedding.dtype != head.dtype:
        return False
    read = source.checkpoint.stored_rows
    return all(
        np.array_equal(read(embedding.name, start, stop), read(head.name, start, stop))
        for start, stop in _ranges(embedding, 1)
    )


# --- tensors


def _job(checkpoint: Checkpoint, stored: StoredTensor, rule: TensorRule, target: Target) -> Job:
    kind = _type_of(rule, stored, target)
    tensor = OutputTensor(rule.target, rule.shape, kind)
    return Job(tensor, lambda: _chunks(checkpoint, stored, rule, kind), stored.n_bytes)


def _type_of(rule: TensorRule, stored: StoredTensor, target: Target) -> GGMLType:
    """Vectors stay in float32, as llama.cpp wants them; rows that don't fill blocks go to float16."""
    if stored.dtype.startswith("I") and stored.type not in PLAIN and BLOCKS[stored.type].elements == 1:
        return stored.type
    if len(rule.shape) < 2:
        return GGMLType.F32
    if target.direct is None:
        return stored.type
    if rule.shape[-1] % BLOCKS[target.direct].elements:
        return GGMLType.F16
    return target.direct


def _chunks(checkpoint: Checkpoint, stored: StoredTensor, rule: TensorRule, kind: GGMLType) -> Chunks:
    """The data of one tensor, in pieces that are small beside the machine's memory."""
    changed = rule.change is Change.ADD_ONE or rule.factor != 1.0
    as_is = stored.type is kind and not changed
    step = rule.shape[0] // rule.heads if rule.heads and len(rule.shape) > 1 else 1
    for start, stop in _ranges(stored, step):
        rows = checkpoint.stored_rows(stored.name, start, stop)
        if as_is and kind not in PLAIN:
            yield rows.reshape(-1).view(np.uint8).data
            continue
        values: npt.NDArray[Any] = rows if as_is else to_float32(rows, stored.type)
        if not _finite(values, stored.type if as_is else GGMLType.F32):
            raise BrokenModelFile(
                f"{stored.file}: {stored.name} holds NaN or infinity: get the checkpoint again"
            )
        if rule.change is Change.INTERLEAVE:
            heads = rule.heads if len(rule.shape) == 1 else (stop - start) // step
            values = interleave(values.reshape(-1, 1) if len(rule.shape) == 1 else values, heads)
        if changed:
            values = _changed(to_float32(values, GGMLType.F32), rule)
        data = values if as_is else _encoded(to_float32(values, GGMLType.F32), kind, stored)
        yield np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _ranges(stored: StoredTensor, step: int) -> Iterator[tuple[int, int]]:
    """Row ranges of about CHUNK_ELEMENTS, in multiples of `step`."""
    rows = max(step, CHUNK_ELEMENTS // max(1, stored.columns) // step * step)
    for start in range(0, stored.n_rows, rows):
        yield start, min(start + rows, stored.n_rows)


def interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """From Hugging Face's order of a head's rows (0, 1, ..., d/2, ...) to llama.cpp's (0, d/2, 1, ...).

    Args:
        rows: [heads * head_dim, columns], of any type.
        heads: how many.
    """
    columns = rows.shape[1]
    return rows.reshape(heads, 2, -1, columns).swapaxes(1, 2).reshape(-1, columns)


def _changed(values: Floats, rule: TensorRule) -> Floats:
    if rule.change is Change.ADD_ONE:
        values = values + np.float32(1)
    return values if rule.factor == 1.0 else values * np.float32(rule.factor)


def _finite(values: npt.NDArray[np.generic], kind: GGMLType) -> bool:
    """No NaN and no infinity: in 16 bits those are the ones with all exponent bits set."""
    if kind is GGMLType.F32:
        return bool(np.isfinite(values).all())
    mask = np.uint16(0x7F80 if kind is GGMLType.BF16 else 0x7C00)
    return not bool(((values.view(np.uint16) & mask) == mask).any())


def _encoded(values: Floats, kind: GGMLType, stored: StoredTensor) -> npt.NDArray[np.generic]:
    if kind is GGMLType.F32:
        return values
    if kind is GGMLType.BF16:
        return to_bfloat16(values)
    if kind is GGMLType.F16:
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not _finite(half, GGMLType.F16):
            raise BadRequest(
                f"{stored.name} holds {np.abs(values).max():.3g}, over float16's 65504: take bf16 or f32"
            )
        return half
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    quantized: npt.NDArray[np.generic] = quantize(values, GGMLQuantizationType(int(kind)))
    return quantized


def to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Round to bfloat16, ties to even. Values are finite."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def _rope_jobs(config: ModelConfig) -> list[Job]:
    """llama3's scaling is a tensor: what each rotary frequency is divided by."""
    scaling = config.rope.scaling
    if scaling is None or scaling.kind is not RopeKind.LLAMA3:
        return []
    factors = model_config.llama3_factors(scaling, config.rope.theta, config.head_dim)
    raw = np.asarray(factors, np.float32).tobytes()
    tensor = OutputTensor("rope_freqs.weight", (len(factors),), GGMLType.F32)
    return [Job(tensor, lambda: iter((raw,)), 0)]


# --- metadata


def _metadata(
    family: Family, config: ModelConfig, folder: Path, target: Target, n_parameters: int
) -> dict[str, Encoded]:
    name = config.name if config.name and "/" not in config.name and "\\" not in config.name else ""
    general: Metadata = {
        "general.architecture": family.gguf,
        "general.type": "model",
        "general.name": name or config.name.rstrip("/").rpartition("/")[2] or folder.resolve().name,
        "general.size_label": size_label(n_parameters),
        "general.file_type": target.ftype,
        "general.quantization_version": 2,
    }
    numbers: Metadata = {f"{family.gguf}.{key}": value for key, value in family.metadata(config).items()}
    return {key: encode(value) for key, value in {**general, **numbers}.items()}


def size_label(n_parameters: int) -> str:
    """The size as it stands in names: "135M", "1.5B"."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n_parameters >= size * 0.9995:
            amount = n_parameters / size
            return f"{amount:.1f}".removesuffix(".0") + unit if amount < 10 else f"{amount:.0f}{unit}"
    return str(n_parameters)


_SPECIAL_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # the format spells it so
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}


def _vocabulary(vocabulary: model_tokenizer.Vocabulary) -> dict[str, Encoded]:
    values: dict[str, Encoded] = {
        "model": encode(vocabulary.model),
        "pre": encode(vocabulary.pre),
        "tokens": encode(vocabulary.tokens),
        "token_type": encode([int(kind) for kind in vocabulary.types]),
    }
    if vocabulary.scores:
        values["scores"] = encode(vocabulary.scores)
    if vocabulary.model == "gpt2" and vocabulary.merges:
        values["merges"] = encode(vocabulary.merges)
    for kind, i in vocabulary.special.items():
        values[_SPECIAL_KEYS[kind]] = encode(i)
    values["add_bos_token"] = encode(vocabulary.add_bos)
    values["add_eos_token"] = encode(vocabulary.add_eos)
    values["add_space_prefix"] = encode(vocabulary.add_space_prefix)
    named = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    if vocabulary.more_templates:
        named["tokenizer.chat_templates"] = encode(list(vocabulary.more_templates))
        for name, text in vocabulary.more_templates.items():
            named[f"tokenizer.chat_template.{name}"] = encode(text)
    if vocabulary.chat_template is not None:
        named["tokenizer.chat_template"] = encode(vocabulary.chat_template)
    return named
