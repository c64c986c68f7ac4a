"""Damaged and hostile GGUF files: the same ones each time.

They are made from models of two layers that llama.cpp loads, and from the header of a real one: cut off,
with flipped bytes, and with each number that llama.cpp is known to crash on or to swallow in silence.
"""

import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.oracles.raw_gguf import (
    ARRAY,
    BOOL,
    F32,
    HEADS,
    I32,
    KV_HEADS,
    LAYERS,
    STRING,
    TYPE_F16,
    TYPE_Q4_0,
    U8,
    U16,
    U32,
    U64,
    WIDTH,
    File,
    Tensor,
    array,
    scalar,
    text,
    tiny_llama,
)

BROKEN = frozenset({4})
UNSUPPORTED = frozenset({6})
ANY = frozenset({0, 4, 6})
"""A flipped bit may well leave a file sound, or turn a name into an unknown one."""

Change = Callable[[File], object]
Base = tuple[str, str, int]
"""Tokenizer, architecture, experts: what `tiny_llama` takes."""

DENSE: Base = ("llama", "llama", 0)
MIXTURE: Base = ("llama", "llama", 4)
QWEN: Base = ("gpt2", "qwen2", 0)
GEMMA_3: Base = ("llama", "gemma3", 0)


@dataclass(frozen=True, slots=True)
class Damaged:
    """One damaged file."""

    name: str
    codes: frozenset[int]
    """What `edgechat models verify` may answer."""
    head: bytes
    size: int
    """Of the file; zeros follow `head`."""

    def write(self, folder: Path) -> Path:
        """Put the file into a folder; the zeros take no room."""
        path = folder / f"{self.name}.gguf"
        with path.open("wb") as file:
            file.write(self.head)
            file.truncate(self.size)
        return path


def damaged_files(real: Path) -> Iterator[Damaged]:
    """All of them.

    Args:
        real: a sound model, whose header is used; Llama, with a BPE tokenizer.
    """
    yield from _cut_tiny()
    yield from _cut_real(real)
    yield from _flipped_tiny(90)
    yield from _flipped_real(real, 40)
    for group, cases in (("file", FILE), ("tensor", TENSORS), ("number", NUMBERS), ("token", TOKENS)):
        for name, (codes, change) in cases.items():
            yield _changed(f"{group}-{name}", codes, DENSE, change)
    for name, (codes, change) in EXPERTS.items():
        yield _changed(f"experts-{name}", codes, MIXTURE, change)
    for name, (codes, change) in BPE.items():
        yield _changed(f"bpe-{name}", codes, QWEN, change)
    for name, (codes, change) in GEMMA.items():
        yield _changed(f"gemma-{name}", codes, GEMMA_3, change)


def _changed(name: str, codes: frozenset[int], base: Base, change: Change) -> Damaged:
    file = tiny_llama(*base)
    change(file)
    head = file.header() + _data(base)
    return Damaged(name, codes, head, len(head))


@functools.cache
def _data(base: Base) -> bytes:
    return tiny_llama(*base).data()


def _cut_tiny() -> Iterator[Damaged]:
    header = tiny_llama(*DENSE).header()
    whole = header + _data(DENSE)
    places = {
        0,
        1,
        3,
        4,
        6,
        8,
        12,
        16,
        20,
        24,
        28,
        32,
        len(header) - 1,
        len(header),
        len(header) + 1,
        len(whole) - 400,
    }
    places |= {len(header) * step // 16 for step in range(1, 16)}
    places |= {len(header) + (len(whole) - len(header)) * step // 8 for step in range(1, 8)}
    for place in sorted(places):
        yield Damaged(f"cut-tiny-{place}", BROKEN, whole[:place], place)


def _cut_real(real: Path) -> Iterator[Damaged]:
    header, size = _real_header(real), real.stat().st_size
    for step in range(1, 10):
        place = len(header) * step // 10
        yield Damaged(f"cut-real-{place}", BROKEN, header[:place], place)
    for place in (len(header), len(header) + 1, size // 2, size - 2**20, size - 2**11, size - 1):
        yield Damaged(f"cut-real-{place}", BROKEN, header, place)


def _flipped_tiny(count: int) -> Iterator[Damaged]:
    numbers = random.Random(1)
    for number in range(count):
        base = (DENSE, QWEN, GEMMA_3, MIXTURE)[number % 4]
        header = bytearray(tiny_llama(*base).header())
        # Half of them where the numbers are, not in the long lists of tokens.
        end = len(header) if number % 2 else 900
        for _ in range(1 + number % 3):
            header[numbers.randrange(end)] ^= 1 << numbers.randrange(8)
        whole = bytes(header) + _data(base)
        yield Damaged(f"flip-tiny-{number}", ANY, whole, len(whole))


def _flipped_real(real: Path, count: int) -> Iterator[Damaged]:
    numbers = random.Random(2)
    sound, size = _real_header(real), real.stat().st_size
    for number in range(count):
        header = bytearray(sound)
        place = (
            numbers.randrange(1200) if number % 2 else numbers.randrange(len(header) - 16_000, len(header))
        )
        header[place] ^= 1 << numbers.randrange(8)
        yield Damaged(f"flip-real-{number}", ANY, bytes(header), size)


def _real_header(real: Path) -> bytes:
    """Up to the data, which begins after the description of the tensor named last."""
    with real.open("rb") as file:
        start = file.read(4 * 2**20)
    last = start.rindex(b"output_norm.weight")
    end = last + len(b"output_norm.weight") + 4 + 8 + 4 + 8
    return start[: -(-end // 32) * 32]


def _put(key: str, kind: int, value: object) -> Change:
    return lambda file: file.put(key, kind, value)


def _llama(name: str, value: int | float) -> Change:
    return _put(f"llama.{name}", U32 if isinstance(value, int) else F32, value)


def _all(*changes: Change) -> Change:
    return lambda file: [change(file) for change in changes]


def _set(**values: object) -> Change:
    return lambda file: [setattr(file, name, value) for name, value in values.items()]


def _tensor(which: str, **values: object) -> Change:
    return lambda file: [setattr(file.tensor(which), key, value) for key, value in values.items()]


def _first(entry: tuple[str | bytes, int, bytes]) -> Change:
    return lambda file: file.fields.insert(0, entry)


def _last(entry: tuple[str | bytes, int, bytes]) -> Change:
    return lambda file: file.fields.append(entry)


def _claim(length: int) -> bytes:
    """A text that claims to be longer than it is."""
    return scalar(U64, length) + b"abc"


EMBEDDING, NORM, QUERY = "token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight"
HUGE = 2**63
N_TOKENS = 293

FILE: dict[str, tuple[frozenset[int], Change]] = {
    "magic": (BROKEN, _set(magic=b"GGML")),
    "magic-of-zip": (BROKEN, _set(magic=b"PK\x03\x04")),
    "version-0": (BROKEN, _set(version=0)),
    "version-1": (UNSUPPORTED, _set(version=1)),
    "version-4": (UNSUPPORTED, _set(version=4)),
    "version-huge": (BROKEN, _set(version=2**31 - 1)),
    "big-endian": (UNSUPPORTED, _set(version=3 << 24)),
    "tensors-none": (BROKEN, _set(n_tensors=0)),
    "tensors-one-more": (BROKEN, lambda file: setattr(file, "n_tensors", len(file.tensors) + 1)),
    "tensors-one-less": (BROKEN, lambda file: setattr(file, "n_tensors", len(file.tensors) - 1)),
    "tensors-2^32": (BROKEN, _set(n_tensors=2**32)),
    "tensors-2^63": (BROKEN, _set(n_tensors=HUGE)),
    "tensors-2^64-1": (BROKEN, _set(n_tensors=2**64 - 1)),
    "keys-none": (BROKEN, _set(n_fields=0)),
    "keys-one-more": (BROKEN, lambda file: setattr(file, "n_fields", len(file.fields) + 1)),
    "keys-one-less": (BROKEN, lambda file: setattr(file, "n_fields", len(file.fields) - 1)),
    "keys-2^32": (BROKEN, _set(n_fields=2**32)),
    "keys-2^63": (BROKEN, _set(n_fields=HUGE)),
    "keys-2^64-1": (BROKEN, _set(n_fields=2**64 - 1)),
    "key-empty": (BROKEN, _first(("", U32, scalar(U32, 1)))),
    "key-too-long": (BROKEN, _first(("k" * 70_000, U32, scalar(U32, 1)))),
    "key-not-text": (BROKEN, _first((b"general.\xff\xfe", U32, scalar(U32, 1)))),
    "key-with-nul": (BROKEN, _first((b"general.\x00name", U32, scalar(U32, 1)))),
    "key-with-escape": (BROKEN, _first((b"\x1b[2J", U32, scalar(U32, 1)))),
    "key-twice": (BROKEN, _last(("general.architecture", STRING, text("llama")))),
    "type-13": (BROKEN, _first(("a", 13, scalar(U32, 1)))),
    "type-2^31": (BROKEN, _first(("a", 2**31, scalar(U32, 1)))),
    "text-2^63": (BROKEN, _last(("a", STRING, _claim(HUGE)))),
    "text-2^64-1": (BROKEN, _last(("a", STRING, _claim(2**64 - 1)))),
    "text-2^40": (BROKEN, _last(("a", STRING, _claim(2**40)))),
    "array-2^63": (BROKEN, _last(("a", ARRAY, array(U32, [1], HUGE)))),
    "array-2^61": (BROKEN, _last(("a", ARRAY, array(U64, [1], 2**61)))),
    "array-2^40": (BROKEN, _last(("a", ARRAY, array(U8, [1], 2**40)))),
    "array-one-more": (BROKEN, _last(("a", ARRAY, array(F32, [1.0], 2)))),
    "array-of-arrays": (BROKEN, _last(("a", ARRAY, array(ARRAY, [], 2)))),
    "array-of-type-99": (BROKEN, _last(("a", ARRAY, scalar(U32, 99) + scalar(U64, 1)))),
    "strings-2^40": (BROKEN, _last(("a", ARRAY, array(STRING, ["a"], 2**40)))),
    "strings-2^20": (BROKEN, _last(("a", ARRAY, array(STRING, ["a"], 2**20)))),
    "string-2^63": (BROKEN, _last(("a", ARRAY, array(STRING, [], 1) + _claim(HUGE)))),
    "string-2^64-9": (BROKEN, _last(("a", ARRAY, array(STRING, [], 1) + _claim(2**64 - 9)))),
    "alignment-0": (BROKEN, _put("general.alignment", U32, 0)),
    "alignment-3": (BROKEN, _put("general.alignment", U32, 3)),
    "alignment-2^31": (BROKEN, _put("general.alignment", U32, 2**31)),
    "alignment-64": (BROKEN, _put("general.alignment", U32, 4096)),
    "alignment-text": (BROKEN, _put("general.alignment", STRING, "32")),
    "alignment-u64": (BROKEN, _put("general.alignment", U64, 32)),
    "adapter": (UNSUPPORTED, _put("general.type", STRING, "adapter")),
    "image-encoder": (UNSUPPORTED, _put("general.type", STRING, "mmproj")),
    "split-name": (BROKEN, _all(_put("split.count", U16, 3), _put("split.no", U16, 0))),
    "split-u32": (BROKEN, _put("split.count", U32, 3)),
}

TENSORS: dict[str, tuple[frozenset[int], Change]] = {
    "name-empty": (BROKEN, _tensor(NORM, name="")),
    "name-64": (BROKEN, _tensor(NORM, name="n" * 64)),
    "name-70000": (BROKEN, _tensor(NORM, name="n" * 70_000)),
    "name-twice": (BROKEN, _tensor(NORM, name="output_norm.weight")),
    "name-not-text": (BROKEN, _tensor(NORM, name=b"\xff\xff")),
    "name-with-nul": (BROKEN, _tensor(NORM, name=b"blk.0.attn_norm.weight\x00a")),
    "dims-0": (BROKEN, _tensor(NORM, n_dims=0)),
    "dims-5": (BROKEN, _tensor(NORM, shape=(WIDTH, 1, 1, 1, 1))),
    "dims-2^31": (BROKEN, _tensor(NORM, n_dims=2**31)),
    "size-0": (BROKEN, _tensor(NORM, shape=(0,), offset=0)),
    "size-minus-1": (BROKEN, _tensor(NORM, shape=(-1,), offset=0)),
    "size-2^63": (BROKEN, _tensor(NORM, shape=(HUGE,), offset=0)),
    "size-2^62": (BROKEN, _tensor(NORM, shape=(2**62,), offset=0)),
    "product-2^64": (BROKEN, _tensor(QUERY, shape=(2**32, 2**32), offset=0)),
    "product-2^66-wraps-to-0": (BROKEN, _tensor(QUERY, shape=(2**33, 2**33), offset=0)),
    "product-of-four": (BROKEN, _tensor(QUERY, shape=(2**16, 2**16, 2**16, 2**16), offset=0)),
    "product-2^62": (BROKEN, _tensor(QUERY, shape=(2**31, 2**31), offset=0)),
    "type-43": (BROKEN, _tensor(QUERY, kind=43)),
    "type-255": (BROKEN, _tensor(QUERY, kind=255)),
    "type-2^31": (BROKEN, _tensor(QUERY, kind=2**31)),
    "type-q4_2": (UNSUPPORTED, _tensor(QUERY, kind=4)),
    "type-q4_0_4_4": (UNSUPPORTED, _tensor(QUERY, kind=31)),
    "type-q8_1": (BROKEN, _tensor(QUERY, kind=9)),
    "type-q8_k": (BROKEN, _tensor(QUERY, kind=15)),
    "type-i8": (BROKEN, _tensor(QUERY, kind=24)),
    "type-i32": (BROKEN, _tensor(QUERY, kind=26)),
    "type-f64": (BROKEN, _tensor(QUERY, kind=28)),
    "block-of-256": (BROKEN, _tensor(QUERY, kind=12)),
    "block-of-32": (BROKEN, _tensor(QUERY, kind=2, shape=(33, 64))),
    "norm-in-f16": (BROKEN, _tensor(NORM, kind=TYPE_F16)),
    "norm-in-q4_0": (BROKEN, _tensor(NORM, kind=TYPE_Q4_0)),
    "norm-in-f16-and-2d": (BROKEN, _tensor(NORM, kind=TYPE_F16, shape=(WIDTH, 1))),
    "offset-unaligned": (BROKEN, _tensor(NORM, offset=17)),
    "offset-of-another": (BROKEN, _tensor(NORM, offset=0)),
    "offset-gap": (BROKEN, _tensor("blk.1.ffn_up.weight", offset=2**20)),
    "offset-2^63": (BROKEN, _tensor(NORM, offset=HUGE)),
    "offset-2^64-32": (BROKEN, _tensor(NORM, offset=2**64 - 32)),
    "larger-than-the-file": (BROKEN, _tensor("blk.1.ffn_up.weight", shape=(WIDTH, 2**20))),
    "no-embedding": (BROKEN, lambda file: file.tensors.pop(0)),
    "embedding-one-row-less": (BROKEN, _tensor(EMBEDDING, shape=(WIDTH, N_TOKENS - 1))),
    "embedding-turned": (BROKEN, lambda file: setattr(file.tensors[0], "shape", file.tensors[0].shape[::-1])),
    "layer-too-many": (BROKEN, lambda file: file.tensors.append(Tensor("blk.2.attn_norm.weight", (WIDTH,)))),
    "layer-2^31": (BROKEN, _tensor("blk.1.attn_norm.weight", name="blk.2147483648.attn_norm.weight")),
    "layer-missing": (
        BROKEN,
        lambda file: setattr(file, "tensors", [one for one in file.tensors if "blk.1." not in str(one.name)]),
    ),
}

NUMBERS: dict[str, tuple[frozenset[int], Change]] = {
    "architecture-missing": (BROKEN, lambda file: file.drop("general.architecture")),
    "architecture-empty": (BROKEN, _put("general.architecture", STRING, "")),
    "architecture-number": (BROKEN, _put("general.architecture", U32, 1)),
    "architecture-unknown": (UNSUPPORTED, _put("general.architecture", STRING, "llama99")),
    "architecture-image-encoder": (UNSUPPORTED, _put("general.architecture", STRING, "clip")),
    "architecture-other": (BROKEN, _put("general.architecture", STRING, "qwen2")),
    "layers-missing": (BROKEN, lambda file: file.drop("llama.block_count")),
    "layers-0": (BROKEN, _llama("block_count", 0)),
    "layers-513": (BROKEN, _llama("block_count", 513)),
    "layers-2^32-1": (BROKEN, _llama("block_count", 2**32 - 1)),
    "layers-one-more": (BROKEN, _llama("block_count", LAYERS + 1)),
    "layers-one-less": (BROKEN, _llama("block_count", LAYERS - 1)),
    "layers-text": (BROKEN, _put("llama.block_count", STRING, "2")),
    "layers-u64": (BROKEN, _put("llama.block_count", U64, 2)),
    "layers-array": (BROKEN, _put("llama.block_count", ARRAY, array(U32, [2]))),
    "context-0": (BROKEN, _llama("context_length", 0)),
    "context-2^32-1": (BROKEN, _llama("context_length", 2**32 - 1)),
    "context-missing": (BROKEN, lambda file: file.drop("llama.context_length")),
    "feed-forward-1": (BROKEN, _llama("feed_forward_length", 1)),
    "width-0": (BROKEN, _llama("embedding_length", 0)),
    "width-2^31": (BROKEN, _llama("embedding_length", 2**31)),
    "width-other": (BROKEN, _llama("embedding_length", 2 * WIDTH)),
    "width-float": (BROKEN, _llama("embedding_length", 64.0)),
    "feed-forward-2^31": (BROKEN, _llama("feed_forward_length", 2**31)),
    "feed-forward-of-one-layer": (BROKEN, _put("llama.feed_forward_length", ARRAY, array(U32, [96]))),
    "heads-0": (BROKEN, _llama("attention.head_count", 0)),
    "heads-3": (BROKEN, _llama("attention.head_count", 3)),
    "heads-2^31": (BROKEN, _llama("attention.head_count", 2**31)),
    "heads-missing": (BROKEN, lambda file: file.drop("llama.attention.head_count")),
    "heads-of-three-layers": (BROKEN, _put("llama.attention.head_count", ARRAY, array(U32, [4, 4, 4]))),
    "heads-one-layer-0": (BROKEN, _put("llama.attention.head_count", ARRAY, array(U32, [HEADS, 0]))),
    "heads-negative": (BROKEN, _put("llama.attention.head_count", ARRAY, array(I32, [HEADS, -1]))),
    "heads-texts": (BROKEN, _put("llama.attention.head_count", ARRAY, array(STRING, ["4", "4"]))),
    "heads-bools": (BROKEN, _put("llama.attention.head_count", ARRAY, array(BOOL, [True, True]))),
    "kv-heads-0": (BROKEN, _llama("attention.head_count_kv", 0)),
    "kv-heads-3": (BROKEN, _llama("attention.head_count_kv", 3)),
    "kv-heads-8": (BROKEN, _llama("attention.head_count_kv", 2 * HEADS)),
    "kv-heads-one-layer-3": (BROKEN, _put("llama.attention.head_count_kv", ARRAY, array(U32, [KV_HEADS, 3]))),
    "keys-0": (BROKEN, _llama("attention.key_length", 0)),
    "keys-2^31": (BROKEN, _llama("attention.key_length", 2**31)),
    "keys-wider-than-values": (BROKEN, _llama("attention.key_length", 32)),
    "values-wider-than-keys": (BROKEN, _llama("attention.value_length", 32)),
    "rotation-0": (BROKEN, _llama("rope.dimension_count", 0)),
    "rotation-odd": (BROKEN, _llama("rope.dimension_count", 15)),
    "rotation-wider-than-head": (BROKEN, _llama("rope.dimension_count", 64)),
    "rotation-narrower-than-head": (BROKEN, _llama("rope.dimension_count", 8)),
    "scaling-unknown": (BROKEN, _put("llama.rope.scaling.type", STRING, "su")),
    "scaling-empty": (BROKEN, _put("llama.rope.scaling.type", STRING, "")),
    "scaling-number": (BROKEN, _put("llama.rope.scaling.type", U32, 1)),
    "scaling-factor-nan": (BROKEN, _llama("rope.scaling.factor", math.nan)),
    "scaling-factor-negative": (BROKEN, _llama("rope.scaling.factor", -2.0)),
    "scaling-context-0": (BROKEN, _llama("rope.scaling.original_context_length", 0)),
    "base-0": (BROKEN, _llama("rope.freq_base", 0.0)),
    "base-negative": (BROKEN, _llama("rope.freq_base", -1.0)),
    "base-nan": (BROKEN, _llama("rope.freq_base", math.nan)),
    "base-infinite": (BROKEN, _llama("rope.freq_base", math.inf)),
    "base-integer": (BROKEN, _llama("rope.freq_base", 10_000)),
    "epsilon-nan": (BROKEN, _llama("attention.layer_norm_rms_epsilon", math.nan)),
    "epsilon-negative": (BROKEN, _llama("attention.layer_norm_rms_epsilon", -1e-5)),
    "epsilon-infinite": (BROKEN, _llama("attention.layer_norm_rms_epsilon", math.inf)),
    "experts-used-of-none": (BROKEN, _llama("expert_used_count", 2)),
    "experts-groups-of-none": (BROKEN, _llama("expert_group_count", 2)),
    "next-token-layers-all": (BROKEN, _llama("nextn_predict_layers", LAYERS)),
    "next-token-layers-2^31": (BROKEN, _llama("nextn_predict_layers", 2**31)),
}

EXPERTS: dict[str, tuple[frozenset[int], Change]] = {
    "1025": (BROKEN, _llama("expert_count", 1025)),
    "2^32-1": (BROKEN, _llama("expert_count", 2**32 - 1)),
    "none-used": (BROKEN, _llama("expert_used_count", 0)),
    "more-used-than-there-are": (BROKEN, _llama("expert_used_count", 5)),
    "used-2^32-1": (BROKEN, _llama("expert_used_count", 2**32 - 1)),
    "used-missing": (BROKEN, lambda file: file.drop("llama.expert_used_count")),
    "groups-all": (BROKEN, _llama("expert_group_count", 4)),
    "groups-3": (BROKEN, _llama("expert_group_count", 3)),
    "groups-none-used": (BROKEN, _llama("expert_group_count", 2)),
    "count-text": (BROKEN, _put("llama.expert_count", STRING, "4")),
}


def _texts(change: Callable[[list[str | bytes]], object]) -> Change:
    """Change the tiny model's tokens."""

    def apply(file: File) -> None:
        tokens: list[str | bytes] = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokens += [f"word{number}" for number in range(N_TOKENS - len(tokens))]
        change(tokens)
        file.put("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))

    return apply


def _token(number: int, value: str | bytes) -> Change:
    return _texts(lambda tokens: tokens.__setitem__(number, value))


def _ggml(name: str, kind: int, value: object) -> Change:
    return _put(f"tokenizer.ggml.{name}", kind, value)


TOKENS: dict[str, tuple[frozenset[int], Change]] = {
    "model-missing": (BROKEN, lambda file: file.drop("tokenizer.ggml.model")),
    "model-number": (BROKEN, _ggml("model", U32, 1)),
    "model-unknown": (UNSUPPORTED, _ggml("model", STRING, "llama99")),
    "model-none": (UNSUPPORTED, _ggml("model", STRING, "none")),
    "list-missing": (BROKEN, lambda file: file.drop("tokenizer.ggml.tokens")),
    "list-empty": (BROKEN, _ggml("tokens", ARRAY, array(STRING, []))),
    "list-of-numbers": (BROKEN, _ggml("tokens", ARRAY, array(U32, list(range(N_TOKENS))))),
    "list-is-text": (BROKEN, _ggml("tokens", STRING, "a")),
    "list-one-less": (BROKEN, _texts(list.pop)),
    "list-one-more": (BROKEN, _texts(lambda tokens: tokens.append("more"))),
    "scores-short": (BROKEN, _ggml("scores", ARRAY, array(F32, [0.0] * 10))),
    "scores-long": (BROKEN, _ggml("scores", ARRAY, array(F32, [0.0] * 1000))),
    "scores-of-bytes": (BROKEN, _ggml("scores", ARRAY, array(U8, [0] * N_TOKENS))),
    "scores-of-texts": (BROKEN, _ggml("scores", ARRAY, array(STRING, [""] * N_TOKENS))),
    "scores-number": (BROKEN, _ggml("scores", F32, 0.0)),
    "scores-nan": (BROKEN, _ggml("scores", ARRAY, array(F32, [math.nan] * N_TOKENS))),
    "types-short": (BROKEN, _ggml("token_type", ARRAY, array(I32, [1] * 10))),
    "types-long": (BROKEN, _ggml("token_type", ARRAY, array(I32, [1] * 1000))),
    "types-of-floats": (BROKEN, _ggml("token_type", ARRAY, array(F32, [1.0] * N_TOKENS))),
    "types-unknown": (BROKEN, _ggml("token_type", ARRAY, array(I32, [99] * N_TOKENS))),
    "types-all-bytes": (BROKEN, _ggml("token_type", ARRAY, array(I32, [6] * N_TOKENS))),
    "byte-minus-1": (BROKEN, _token(20, "<0x-1>")),
    "byte-not-hex": (BROKEN, _token(20, "<0xZZ>")),
    "byte-short": (BROKEN, _token(20, "<0x4>")),
    "byte-long": (BROKEN, _token(20, "<0x4141>")),
    "byte-lower-case": (BROKEN, _token(0xAF + 3, "<0xaf>")),
    "byte-empty": (BROKEN, _token(20, "")),
    "byte-line-break": (BROKEN, _token(20, "<0x11>\n")),
    "twice": (BROKEN, _token(280, "word0")),
    "twice-to-c": (BROKEN, _token(280, b"word0\x00tail")),
    "twice-by-their-numbers": (
        BROKEN,
        _all(_texts(lambda tokens: tokens.__setitem__(slice(280, 282), ["", "[EMPTY_280]"]))),
    ),
    "very-long": (BROKEN, _token(280, "x" * 70_000)),
    "bos-out-of-range": (BROKEN, _ggml("bos_token_id", U32, N_TOKENS)),
    "eos-out-of-range": (BROKEN, _ggml("eos_token_id", U32, 2**31)),
    "eot-minus-1": (BROKEN, _ggml("eot_token_id", U32, 2**32 - 1)),
    "unknown-out-of-range": (BROKEN, _ggml("unknown_token_id", U32, 10**6)),
    "padding-text": (BROKEN, _ggml("padding_token_id", STRING, "</s>")),
    "eos-signed": (BROKEN, _ggml("eos_token_id", I32, -1)),
    "fim-out-of-range": (BROKEN, _ggml("fim_pre_token_id", U32, N_TOKENS + 5)),
    "template-over-1-mib": (BROKEN, _put("tokenizer.chat_template", STRING, "x" * (2**20 + 1))),
    "template-number": (BROKEN, _put("tokenizer.chat_template", U32, 1)),
    "named-template-over-1-mib": (
        BROKEN,
        _put("tokenizer.chat_template.tool_use", STRING, "x" * (2**20 + 1)),
    ),
    "pre-number": (BROKEN, _ggml("pre", U32, 1)),
}

BPE: dict[str, tuple[frozenset[int], Change]] = {
    "merges-missing": (BROKEN, lambda file: file.drop("tokenizer.ggml.merges")),
    "merges-of-numbers": (BROKEN, _ggml("merges", ARRAY, array(U32, [1]))),
    "merges-text": (BROKEN, _ggml("merges", STRING, "a b")),
    "pre-unknown": (UNSUPPORTED, _ggml("pre", STRING, "qwen99")),
    "heads-3": (BROKEN, _put("qwen2.attention.head_count", U32, 3)),
    "keys-63": (BROKEN, _put("qwen2.attention.key_length", U32, 63)),
    "rotation-2": (BROKEN, _put("qwen2.rope.dimension_count", U32, 2)),
    "byte-token-of-another-kind": (
        BROKEN,
        lambda file: file.put("tokenizer.ggml.token_type", ARRAY, array(I32, [3, 3, 3, 6, *[1] * 259])),
    ),
}

GEMMA: dict[str, tuple[frozenset[int], Change]] = {
    "window-0": (BROKEN, _put("gemma3.attention.sliding_window", U32, 0)),
    "window-2^32-1": (BROKEN, _put("gemma3.attention.sliding_window", U32, 2**32 - 1)),
    "window-text": (BROKEN, _put("gemma3.attention.sliding_window", STRING, "512")),
    "keys-17": (ANY, _put("gemma3.attention.key_length", U32, 17)),
    "base-of-windows-0": (BROKEN, _put("gemma3.rope.freq_base_swa", F32, 0.0)),
}
