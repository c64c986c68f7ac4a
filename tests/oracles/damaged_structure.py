"""Damage to a GGUF file's header: its counts, keys, texts and arrays, and its tensors' descriptions."""

from tests.oracles.gguf_changes import BROKEN, N_TOKENS, UNSUPPORTED, Cases, Change, put
from tests.oracles.raw_gguf import (
    ARRAY,
    F32,
    STRING,
    TYPE_F16,
    TYPE_Q4_0,
    U8,
    U16,
    U32,
    U64,
    WIDTH,
    Tensor,
    array,
    scalar,
    text,
)

HUGE = 2**63
EMBEDDING, NORM, QUERY = "token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight"


def _all(*changes: Change) -> Change:
    return lambda file: [change(file) for change in changes]


def _set(**values: object) -> Change:
    return lambda file: [setattr(file, name, value) for name, value in values.items()]


def _first(entry: tuple[str | bytes, int, bytes]) -> Change:
    return lambda file: file.fields.insert(0, entry)


def _last(entry: tuple[str | bytes, int, bytes]) -> Change:
    return lambda file: file.fields.append(entry)


def _tensor(which: str, **values: object) -> Change:
    return lambda file: [setattr(file.tensor(which), key, value) for key, value in values.items()]


def _claim(length: int) -> bytes:
    """A text that claims to be longer than it is."""
    return scalar(U64, length) + b"abc"


FILE: Cases = {
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
    "alignment-0": (BROKEN, put("general.alignment", U32, 0)),
    "alignment-3": (BROKEN, put("general.alignment", U32, 3)),
    "alignment-2^31": (BROKEN, put("general.alignment", U32, 2**31)),
    "alignment-64": (BROKEN, put("general.alignment", U32, 4096)),
    "alignment-text": (BROKEN, put("general.alignment", STRING, "32")),
    "alignment-u64": (BROKEN, put("general.alignment", U64, 32)),
    "adapter": (UNSUPPORTED, put("general.type", STRING, "adapter")),
    "image-encoder": (UNSUPPORTED, put("general.type", STRING, "mmproj")),
    "split-name": (BROKEN, _all(put("split.count", U16, 3), put("split.no", U16, 0))),
    "split-u32": (BROKEN, put("split.count", U32, 3)),
}
TENSORS: Cases = {
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
