"""Turns a checkpoint into the parts of a GGUF file: metadata, and tensors that are made one by one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models import tokenizer as model_tokenizer
from models.checkpoint import (
    GGUFCheckpoint,
    SafetensorsCheckpoint,
    StoredTensor,
)
from models.config import ModelConfig
from models.errors import BrokenModelFile, UnsupportedModel
from models.families import Family, TensorRule, family_of
from models.families.base import Metadata
from models.ggml_types import GGMLType
from models.json_file import read_json
from models.packed import PackedCheckpoint
from models.tensor_names import TensorNames
from quantize.formats.gguf import Encoded, OutputTensor, copied, encode
from quantize.formats.repack import Repacker, natural_target
from quantize.plan import Target
from quantize.tensors import Job, job_for, row_ranges

IGNORED = re.compile(
    r"(rotary_emb\.inv_freq|\.masked_bias|\.attn\.bias)$|^(model\.)?(vision_tower|multi_modal_projector)\."
)
"""Buffers that are computed, and the parts that see."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A GGUF file in parts."""

    architecture: str
    metadata: Mapping[str, Encoded]
    jobs: tuple[Job, ...]
    n_parameters: int
    notes: tuple[str, ...]
    is_repacked: bool = False
    """Its matrices are the integers of a quantized source: nothing is left to llama.cpp."""

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
    raw = read_json(where)
    family = family_of(raw, where)
    config = family.read(raw, where)
    family.check(config)
    source = _Source(folder, checkpoint)
    tied = _is_tied(config, source)
    rules = list(family.tensors(config, tied=tied))
    source.check(rules, tied=tied)
    repacker = _repacker(checkpoint, target)
    jobs = [_job(source, rule, target, repacker) for rule in rules]
    jobs += [_rope_job(name, factors) for name, factors in family.rope_tensors(config).items()]
    vocabulary = model_tokenizer.read(folder, config.vocab_size)
    n_parameters = sum(job.tensor.n_elements for job in jobs if job.source_bytes)
    metadata = _metadata(family, config, folder, target, n_parameters) | _vocabulary(vocabulary)
    notes = [*family.notes(config), *vocabulary.notes]
    if repacker is not None and repacker.fit.note:
        notes.append(repacker.fit.note)
    is_repacked = repacker is not None
    return Conversion(family.gguf, metadata, tuple(jobs), n_parameters, tuple(notes), is_repacked)


def _repacker(checkpoint: SafetensorsCheckpoint, target: Target) -> Repacker | None:
    """Where the target is what a quantized checkpoint is already.

    Raises:
        UnsupportedModel: it nearly is, but no such file can hold it.
    """
    if target.name not in {"q4_0", "q4_1", "q8_0"} or not isinstance(checkpoint, PackedCheckpoint):
        return None
    try:
        natural = natural_target(checkpoint)
    except UnsupportedModel:
        if target.direct is not None:  # Q8_0 can be made of anything
            return None
        raise
    if natural is None or (target != natural and (natural.name, target.name) != ("q4_0", "q4_1")):
        return None
    return Repacker(checkpoint, target)


def _job(source: "_Source", rule: TensorRule, target: Target, repacker: Repacker | None) -> Job:
    tensors = source.tensors(rule)
    if repacker is None:
        return job_for(source.checkpoint, tensors, rule, target)
    # What is dense stays of the type that it has.
    repacked = repacker.job(rule, tuple(tensor.name for tensor in tensors))
    return repacked or job_for(source.checkpoint, tensors, rule, replace(target, direct=None))


def from_gguf(checkpoint: GGUFCheckpoint, target: Target) -> Conversion:
    """A GGUF file, dequantized and written in another type; its metadata is copied.

    Raises:
        UnsupportedModel: a tensor's type can't be dequantized.
    """
    jobs = []
    for stored in checkpoint.tensors.values():
        rule = TensorRule(stored.name, stored.name, stored.shape)
        jobs.append(job_for(checkpoint, (stored,), rule, target))
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
        self.names = TensorNames(folder, checkpoint.tensors)

    def tensor(self, plain: str) -> StoredTensor:
        return self.checkpoint.tensors[self.names.name(plain)]

    def tensors(self, rule: TensorRule) -> tuple[StoredTensor, ...]:
        return tuple(self.tensor(name) for name in rule.sources)

    def check(self, rules: list[TensorRule], *, tied: bool) -> None:
        """Each tensor is there, of the right shape and of a type that can be read, and no others are."""
        plain = [name for rule in rules for name in rule.sources]
        missing = [name for name in plain if not self.names.has(name)]
        if missing:
            raise BrokenModelFile(
                f"{self.folder} is not whole: download the checkpoint again (tensors that are missing: "
                f"{len(missing)}, the first is {missing[0]})"
            )
        for rule in rules:
            for name in rule.sources:
                self.names.checked(name, rule.source_shape)
        known = {self.names.name(name) for name in plain}
        known |= {self.names.name("lm_head.weight")} if tied else set()
        extra = [name for name in self.checkpoint.tensors if name not in known and not IGNORED.search(name)]
        if extra:
            raise UnsupportedModel(
                f"{self.folder} has {len(extra)} tensors that its architecture has not, such as {extra[0]}"
            )


def _is_tied(config: ModelConfig, source: _Source) -> bool:
    """Whether the output matrix is the embedding: said so, and no other one is in the files."""
    if not config.tied:
        return False
    if not source.names.has("lm_head.weight"):
        return True
    embedding, head = source.tensor("model.embed_tokens.weight"), source.tensor("lm_head.weight")
    if embedding.shape != head.shape or embedding.dtype != head.dtype:
        return False
    read = source.checkpoint.stored_rows
    return all(
        np.array_equal(read(embedding.name, start, stop), read(head.name, start, stop))
        for start, stop in row_ranges(embedding, 1)
    )


def _rope_job(name: str, factors: list[float]) -> Job:
    """What each rotary frequency is divided by, as a tensor."""
    raw = np.asarray(factors, np.float32).tobytes()
    return Job(OutputTensor(name, (len(factors),), GGMLType.F32), lambda: iter((raw,)), 0)


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
