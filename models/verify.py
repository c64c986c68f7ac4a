"""Checks a GGUF file before native code sees it.

llama.cpp asserts what it expects of a model's numbers, and an assertion ends the process; some it doesn't
check at all. Each rule here stands for such an assertion, or for a number that would load in silence and
answer nonsense. The rules were read in llama-model.cpp (load_hparams), llama-vocab.cpp and gguf.cpp.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from models import architectures as known
from models.errors import AGAIN, BrokenModelFile, UnsupportedModel, cut_off, damaged
from models.gguf import Field, GGMLType, GGUFHeader, LazyArray, TensorInfo, ValueType, read_header
from models.verify_hyperparameters import check_hyperparameters
from models.verify_tokenizer import check_tokenizer

SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
BLOCK_NAME = re.compile(r"^blk\.(?P<layer>\d{1,9})\.(?P<rest>.+)$")

NOT_MODELS = {
    "adapter": "a LoRA adapter, not a model",
    "mmproj": "an image encoder that belongs to another model",
    "imatrix": "an importance matrix, not a model",
    "vocab": "a vocabulary without a model",
}

# What llama.cpp computes with, besides integers in the few tables below.
NOT_WEIGHTS = frozenset({GGMLType.Q8_1, GGMLType.Q8_K, GGMLType.F64})
INTEGERS = frozenset({GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64})
INTEGER_TABLES = re.compile(r"^d2t$|tid2eid")
# What is added and multiplied number by number must be float32, or llama.cpp's CPU kernels abort.
VECTOR_NAMES = re.compile(r"norm|bias|^rope_")


def verify_gguf(path: str | os.PathLike[str]) -> GGUFHeader:
    """Read a GGUF file's header and check that native code may see the file; all parts, if it is split.

    Takes time in proportion to the header; the weights themselves are not read.

    Raises:
        FileNotFoundError: there is no such file, or it can't be read.
        BrokenModelFile: damaged, truncated or hostile; one line says what, where and what to do.
        UnsupportedModel: sound, but not something that llama.cpp of this version can load as a model.
    """
    header = read_header(path)
    check_kind(header)
    check_layout(header)
    parts = [header, *_other_parts(header)]
    check_hyperparameters(header)
    check_tokenizer(header)
    _check_blocks(parts)
    _check_embedding(parts)
    return header


def check_kind(header: GGUFHeader) -> None:
    """The file is a model at all."""
    kind = header.metadata.get("general.type")
    if isinstance(kind, str) and kind in NOT_MODELS:
        raise UnsupportedModel(f"{header.path} is {NOT_MODELS[kind]}: give the model itself")
    if not header.tensors:
        raise BrokenModelFile(f"{header.path} has no weights in it: {AGAIN}")


def check_layout(header: GGUFHeader) -> None:
    """Types that can be computed with; data one after the other, aligned, inside the file."""
    room = header.file_size - header.data_offset
    expected = 0
    has_plain_vectors = header.architecture not in known.RECURRENT
    for tensor in header.tensors:
        where = tensor.record_offset
        if tensor.type in NOT_WEIGHTS or (tensor.type in INTEGERS and not INTEGER_TABLES.search(tensor.name)):
            raise damaged(header.path, f"{tensor.name} is in {tensor.type.name}, as no weights are", where)
        if has_plain_vectors and _is_vector(tensor) and tensor.type not in INTEGERS | {GGMLType.F32}:
            raise damaged(
                header.path, f"the vector {tensor.name} is in {tensor.type.name}, not in F32", where
            )
        if tensor.offset % header.alignment:
            raise damaged(
                header.path,
                f"{tensor.name} is at offset {tensor.offset}, no multiple of {header.alignment}",
                where,
            )
        if tensor.offset != expected:
            kind = "over its neighbour" if tensor.offset < expected else "with a gap before it"
            raise damaged(
                header.path,
                f"{tensor.name} is at offset {tensor.offset}, not {expected}, {kind}",
                where,
            )
        if tensor.offset + tensor.n_bytes > room:
            missing = tensor.offset + tensor.n_bytes - room
            raise cut_off(header.path, f"{tensor.name} ends {missing} bytes after the file does")
        expected = tensor.offset + -(-tensor.n_bytes // header.alignment) * header.alignment


def _is_vector(tensor: TensorInfo) -> bool:
    if len(tensor.shape) == 1:
        return True
    return tensor.n_elements == tensor.shape[0] and VECTOR_NAMES.search(tensor.name) is not None


def split_parts(path: Path) -> tuple[Path, ...]:
    """All parts of a split model, by the name of one: `x-00002-of-00003.gguf`; () if it isn't one."""
    match = SPLIT_NAME.match(path.name)
    if match is None:
        return ()
    count = int(match["count"])
    return tuple(path.with_name(f"{match['stem']}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1))


def _other_parts(header: GGUFHeader) -> list[GGUFHeader]:
    """The headers of the second and later parts, checked; [] where the model is in one file."""
    count = _small(header, "split.count")
    if count is None or count <= 1:
        return []
    paths = split_parts(header.path)
    if len(paths) != count:
        raise BrokenModelFile(
            f"{header.path} is one of {count} parts, but its name doesn't end in "
            f"-00001-of-{count:05}.gguf: give the parts their names back"
        )
    if _small(header, "split.no") != 0:
        raise UnsupportedModel(f"{header.path} is not the first of its {count} parts: name {paths[0].name}")
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise BrokenModelFile(
            f"{header.path} needs {count} parts, and {len(missing)} are missing "
            f"({_some(missing)}): put them into {header.path.parent}"
        )
    others = [read_header(part) for part in paths[1:]]
    for number, other in enumerate(others, start=1):
        check_layout(other)
        if _small(other, "split.no") != number:
            raise BrokenModelFile(f"{other.path} is not part {number + 1} of {header.path.name}: {AGAIN}")
    found = sum(len(part.tensors) for part in (header, *others))
    expected = header.metadata.get("split.tensors.count")
    if found != expected:
        raise damaged(header.path, f"its parts have {found} tensors, not {expected}")
    return others


def _small(header: GGUFHeader, key: str) -> int | None:
    """A 16-bit number: llama.cpp aborts on another type."""
    entry: Field | None = header.fields.get(key)
    if entry is None:
        return None
    if entry.type is not ValueType.UINT16 or not isinstance(entry.value, int):
        raise damaged(header.path, f"{key} is {entry.type.shown}, not {ValueType.UINT16.shown}", entry.offset)
    return entry.value


def _check_blocks(parts: Sequence[GGUFHeader]) -> None:
    """Weights for every layer, and for no other."""
    first = parts[0]
    layers: dict[int, set[str]] = {}
    names: set[str] = set()
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in names:
                raise damaged(part.path, f"it has {tensor.name}, which another part has too")
            names.add(tensor.name)
            match = BLOCK_NAME.match(tensor.name)
            if match:
                layers.setdefault(int(match["layer"]), set()).add(match["rest"])
    count = first.hyper("block_count")
    if not layers or not isinstance(count, int):
        return  # encoder-decoders name their layers otherwise
    claim = f"{first.architecture}.block_count is {count}"
    if max(layers) >= count:
        raise damaged(first.path, f"{claim}, but there are weights of layer {max(layers)}")
    # deci leaves out whole layers.
    if len(layers) < count and first.architecture != "deci":
        gone = next(layer for layer in range(count) if layer not in layers)
        raise damaged(first.path, f"{claim}, but there are no weights of layer {gone}")
    if first.architecture in known.UNIFORM_LAYERS and not first.hyper("nextn_predict_layers"):
        all_of_them = set().union(*layers.values())
        for layer, rests in sorted(layers.items()):
            if lacking := all_of_them - rests:
                raise damaged(first.path, f"it lacks blk.{layer}.{min(lacking)}, which other layers have")


def _check_embedding(parts: Sequence[GGUFHeader]) -> None:
    """The table of token embeddings has a row for each token."""
    first = parts[0]
    tokens = first.metadata.get("tokenizer.ggml.tokens")
    width = first.hyper("embedding_length")
    table = next((t for part in parts for t in part.tensors if t.name == "token_embd.weight"), None)
    if table is None:
        raise damaged(first.path, "it lacks token_embd.weight")
    n_tokens = len(tokens) if isinstance(tokens, LazyArray) else 0
    if table.shape != (width, n_tokens):
        raise damaged(
            first.path,
            f"token_embd.weight has the shape {list(table.shape)}, with an embedding_length of {width} "
            f"and {n_tokens} tokens",
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
