"""What a model will need of the memory, from its header alone: at once, and near enough to choose by.

llama.cpp itself says it exactly (`edgechat.library.dry_run`). The figures for intermediate results were
fitted to what it says of models of several families; the rest follows from the format.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from edgechat import hardware
from edgechat.library.inspect import kv_bytes_per_token, number
from edgechat.library.local import parts_of
from edgechat.library.needs import Needs
from edgechat.library.repack import laid
from edgechat.records import KVType, LoadSettings
from models.gguf import GGUFHeader, LazyArray, TensorInfo, read_header

MIB = 2**20
CTX_STEP = 256
DEFAULT_CTX = 8192
MAX_UBATCH = 512
SCORES_BYTES = 64 * MIB
"""Of the attention's scores, where they are in memory."""
SCORES_BATCH, LEAST_BATCH = 128, 64
"""Tokens that are computed at once then: more gain nothing, and fewer would cost time."""
LOGITS_BYTES = 128 * MIB
MIN_OUTPUTS = 64
FLOAT, HALF = 4, 2
SHARE: dict[KVType, float] = {"f16": 1.0, "q8_0": 17 / 32, "q4_0": 9 / 32}
"""Of float16's bytes."""

# Measured: an engine without a model; llama.cpp's tables for each token and each merge; its graphs.
ENGINE = 50 * MIB
TOKEN, MERGE = 184, 133
GRAPHS = 6 * MIB


def estimate(parts: Sequence[GGUFHeader], settings: LoadSettings, features: Iterable[str]) -> Needs:
    """About what the engine will take in main memory, with everything on the CPU.

    Args:
        parts: the headers of the model's files, the first first.
        settings: how it would be loaded.
        features: the CPU's, as `edgechat.hardware` names them.
    """
    header = parts[0]
    tensors = [tensor for part in parts for tensor in part.tensors]
    vocabulary = _count(header, "tokenizer.ggml.tokens")
    sequences = settings.n_sequences + 1
    n_ctx = context(settings, number(header, "context_length"))
    ubatch = min(max(settings.n_batch, sequences), MAX_UBATCH)
    rows = outputs_max(vocabulary, max(settings.n_batch, sequences), sequences)
    compute = compute_bytes(header, tensors, n_ctx, ubatch)
    heads = number(header, "attention.head_count")
    scored = min(ubatch, scores_batch(n_ctx, heads)) if settings.kv_type == "f16" else 0
    if scored:
        # Which way attention is computed is tried out when the model is loaded: the one that takes more.
        with_scores = compute_bytes(header, tensors, n_ctx, scored) + scored * FLOAT * heads * n_ctx
        compute, ubatch = max((compute, ubatch), (with_scores, scored))
    reserved = max(compute, min(rows, ubatch) * vocabulary * FLOAT)
    return Needs(
        engine=ENGINE + GRAPHS + table_bytes(header),
        **weight_needs(parts, settings, features),
        kv=kv_bytes(header, n_ctx, settings.kv_type) + recurrent_bytes(header, sequences),
        compute=compute,
        output=sequences * vocabulary * FLOAT,
        scoring=reserved - compute + rows * vocabulary * FLOAT,
    )


def read_parts(path: Path) -> list[GGUFHeader]:
    """The headers of all of a model's files.

    Raises:
        FileNotFoundError: a part is missing.
        models.errors.ModelError: one is broken or not supported.
    """
    return [read_header(part) for part in parts_of(path)]


def estimate_file(path: Path, settings: LoadSettings) -> Needs:
    """`estimate` of a file, for this machine.

    Raises:
        FileNotFoundError: a part is missing.
        models.errors.ModelError: one is broken or not supported.
    """
    return estimate(read_parts(path), settings, hardware.cpu_features())


def weight_needs(
    parts: Sequence[GGUFHeader], settings: LoadSettings, features: Iterable[str]
) -> dict[str, int]:
    """The fields of `Needs` that weights take, with all of them in main memory."""
    weights = laid(parts, features)
    if settings.use_mmap is False:
        return {"weights": weights.stored - weights.originals, "repacked": weights.copies, "cold": 0}
    return {"weights": weights.mapped, "repacked": weights.copies, "cold": weights.cold}


def table_bytes(header: GGUFHeader) -> int:
    """What llama.cpp keeps of the vocabulary: a row for each token and each merge."""
    return TOKEN * _count(header, "tokenizer.ggml.tokens") + MERGE * _count(header, "tokenizer.ggml.merges")


def context(settings: LoadSettings, n_ctx_train: int) -> int:
    """Tokens of context that a model is loaded with, in llama.cpp's steps."""
    wanted = settings.n_ctx or min(n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
    return max(wanted + -wanted % CTX_STEP, CTX_STEP)


def outputs_max(n_vocab: int, n_batch: int, n_sequences: int) -> int:
    """Most rows of logits that one call of llama.cpp may give: its buffers are that large.

    A row is 1 MiB for a vocabulary of 262,144, and llama.cpp's own default is a row for each token of a
    batch. No more than 128 MiB are taken, but 64 rows and one for each sequence always.
    """
    return min(n_batch, max(LOGITS_BYTES // (FLOAT * max(1, n_vocab)), MIN_OUTPUTS, n_sequences))


def scores_batch(n_ctx: int, n_heads: int) -> int:
    """Tokens whose scores against a whole context are in memory at once; 0: too few to be worth it."""
    fitting = SCORES_BYTES // (FLOAT * n_ctx * max(1, n_heads)) // 32 * 32
    return min(SCORES_BATCH, fitting) if fitting >= LEAST_BATCH else 0


def kv_bytes(header: GGUFHeader, n_ctx: int, kv_type: KVType) -> int:
    """The cache of all layers with attention. Window layers keep all of the context too (`swa_full`)."""
    rank = number(header, "attention.kv_lora_rank")
    if rank:  # multi-head latent attention keeps one narrow row for all heads
        width = rank + number(header, "rope.dimension_count")
        return int(number(header, "block_count") * width * HALF * SHARE[kv_type] * n_ctx)
    return int(kv_bytes_per_token(header) * SHARE[kv_type] * n_ctx)


def recurrent_bytes(header: GGUFHeader, sequences: int) -> int:
    """States of recurrent layers: float32, one for each sequence, whatever its length."""
    inner, state = number(header, "ssm.inner_size"), number(header, "ssm.state_size")
    if not inner or not state:
        return 0
    kernel, groups = number(header, "ssm.conv_kernel"), number(header, "ssm.group_count")
    layers = number(header, "block_count")
    heads = header.hyper("attention.head_count_kv")
    if isinstance(heads, LazyArray) and heads.count <= layers:
        layers = sum(1 for one in heads.read_numbers() if not one)
    row = max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner
    return layers * row * FLOAT * sequences


def compute_bytes(header: GGUFHeader, tensors: Iterable[TensorInfo], n_ctx: int, ubatch: int) -> int:
    """Intermediate results of a batch with few outputs: activations, and the mask of the attention."""
    width = number(header, "embedding_length")
    masks = 2 if number(header, "attention.sliding_window") else 1
    activations = FLOAT * (4.2 * width + 3 * _feed_forward(header, tensors))
    return int(ubatch * (activations + masks * HALF * n_ctx))


def _feed_forward(header: GGUFHeader, tensors: Iterable[TensorInfo]) -> int:
    """How wide the widest layer between two projections is; all experts that a token uses together."""
    used = number(header, "expert_used_count") or 1
    widest = 0
    for tensor in tensors:
        if ".ffn_up" in tensor.name and len(tensor.shape) >= 2:
            widest = max(widest, tensor.shape[1] * (used if len(tensor.shape) == 3 else 1))
    return widest or 4 * number(header, "embedding_length")


def _count(header: GGUFHeader, key: str) -> int:
    value = header.metadata.get(key)
    return value.count if isinstance(value, LazyArray) else 0
