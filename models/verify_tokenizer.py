"""The vocabulary in a GGUF header: its lists agree, its ids are in range, its bytes are all there."""

import math
import re
import struct
from collections.abc import Sequence

from models import architectures as known
from models.errors import BrokenModelFile, UnsupportedModel, damaged
from models.gguf import GGUFHeader, LazyArray, ValueType

PREFIX = "tokenizer.ggml."
TOKENS = PREFIX + "tokens"
MAX_TOKENS = 2**22
MAX_TOKEN_BYTES = 2**16
MAX_TEMPLATE_BYTES = 2**20
BYTE_TOKEN = re.compile(rb"^<0x[0-9A-F]{2}>$")
BYTE_TYPE = 6
TOKEN_TYPES = frozenset(range(7))
NEEDS_MERGES = frozenset({"gpt2", "hybriddna", "whitespace", "gemma4"})


def check_tokenizer(header: GGUFHeader) -> None:
    """Tokens, scores, types, merges, special ids and chat templates are what llama.cpp can take.

    Raises:
        BrokenModelFile: lists of wrong types or lengths, tokens that are doubled, ids out of range, ...
        UnsupportedModel: a tokenizer that this llama.cpp doesn't know.
    """
    model = _check_names(header)
    tokens = _array(header, TOKENS, ValueType.STRING)
    if tokens is None or not 1 <= tokens.count <= MAX_TOKENS:
        count = 0 if tokens is None else tokens.count
        raise damaged(header.path, f"it has {count} tokens: 1 to {MAX_TOKENS} are possible")
    types = _check_lists(header, model, tokens.count)
    _check_special_ids(header, tokens.count)
    _check_templates(header)
    _check_texts(header, model, tokens.read_bytes(), types)


def _check_names(header: GGUFHeader) -> str:
    model = header.metadata.get(PREFIX + "model")
    if not isinstance(model, str):
        raise damaged(header.path, f"it lacks {PREFIX}model, the kind of its tokenizer")
    if model in ("none", "no_vocab"):
        raise UnsupportedModel(
            f"{header.path} has no vocabulary, so it can't read or write text: choose another"
        )
    if model not in known.TOKENIZERS:
        raise UnsupportedModel(
            f"{header.path} has a tokenizer of the kind {model[:64]!r}, which this llama.cpp doesn't know: "
            "a newer edgechat may"
        )
    pre = header.metadata.get(PREFIX + "pre", "")
    if not isinstance(pre, str):
        raise _broken(header, PREFIX + "pre", "is not a name")
    if model in NEEDS_MERGES and model != "gemma4" and pre not in known.PRE_TOKENIZERS | {""}:
        raise UnsupportedModel(
            f"{header.path} has a pre-tokenizer of the kind {pre[:64]!r}, which this llama.cpp doesn't know: "
            "a newer edgechat may"
        )
    return model


def _check_lists(header: GGUFHeader, model: str, n_tokens: int) -> Sequence[float]:
    """Scores, types and merges; what comes back are the tokens' types, () if there are none."""
    scores = _array(header, PREFIX + "scores", ValueType.FLOAT32, ValueType.INT32)
    types = _array(header, PREFIX + "token_type", ValueType.INT32)
    merges = _array(header, PREFIX + "merges", ValueType.STRING)
    for name, array in (("scores", scores), ("token_type", types)):
        if array is not None and array.count != n_tokens:
            raise _broken(header, PREFIX + name, f"has {array.count} entries for {n_tokens} tokens")
    if merges is None and model in NEEDS_MERGES and header.metadata.get(PREFIX + "pre") != "kimi-k2":
        raise damaged(header.path, f"it lacks {PREFIX}merges")
    if merges is not None and merges.count > MAX_TOKENS:
        raise _broken(header, PREFIX + "merges", f"has {merges.count} entries")
    if scores is not None and math.isnan(sum(scores.read_numbers())):
        raise _broken(header, PREFIX + "scores", "has one that is no number")
    numbers = () if types is None else types.read_numbers()
    strange = set(numbers) - TOKEN_TYPES
    if strange:
        raise _broken(header, PREFIX + "token_type", f"has the unknown type {min(strange)}")
    return numbers


def _check_special_ids(header: GGUFHeader, n_tokens: int) -> None:
    for key, entry in header.fields.items():
        if not (key.startswith(PREFIX) and key.endswith("_token_id")):
            continue
        if entry.type is not ValueType.UINT32 or not isinstance(entry.value, int):
            raise _broken(header, key, f"is {entry.type.shown}, not {ValueType.UINT32.shown}")
        if entry.value >= n_tokens:
            raise _broken(header, key, f"is {entry.value}, but there are {n_tokens} tokens")


def _check_templates(header: GGUFHeader) -> None:
    for key, entry in header.fields.items():
        if not key.startswith("tokenizer.chat_template"):
            continue
        value = entry.value
        if isinstance(value, LazyArray):  # the names of further templates
            size = value.n_bytes
        elif isinstance(value, str):
            size = len(value.encode())
        else:
            raise _broken(header, key, "is not a text")
        if size > MAX_TEMPLATE_BYTES:
            raise _broken(header, key, f"has {size} bytes: {MAX_TEMPLATE_BYTES} are allowed")


def _check_texts(header: GGUFHeader, model: str, tokens: list[bytes], types: Sequence[float]) -> None:
    """No token twice; byte tokens well-formed, and where texts fall back on them, all there."""
    distinct = set(tokens)
    # llama.cpp reads them as C strings, and names the empty ones.
    texts = tokens
    if b"" in distinct or any(b"\0" in text for text in distinct):
        texts = [raw.partition(b"\0")[0] or b"[EMPTY_%d]" % number for number, raw in enumerate(tokens)]
        distinct = set(texts)
    longest = max(map(len, texts))
    if longest > MAX_TOKEN_BYTES:
        raise _broken(header, TOKENS, f"has one of {longest} bytes")
    if len(distinct) < len(texts):
        first: dict[bytes, int] = {}
        for number, text in enumerate(texts):
            if first.setdefault(text, number) != number:
                raise _broken(header, TOKENS, f"has {_shown(text)} twice, as {first[text]} and {number}")
    for number in (number for number, kind in enumerate(types) if kind == BYTE_TYPE):
        if not BYTE_TOKEN.match(texts[number]):
            raise _broken(
                header, TOKENS, f"has {_shown(texts[number])} as token {number}, which stands for a byte"
            )
    if model == "llama":
        for byte in range(256):
            if b"<0x%02X>" % byte not in distinct and struct.pack("B", byte) not in distinct:
                raise _broken(header, TOKENS, f"has no token for the byte 0x{byte:02X}")


def _array(header: GGUFHeader, key: str, *allowed: ValueType) -> LazyArray | None:
    value = header.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, LazyArray):
        raise _broken(header, key, "is not a list")
    if value.type not in allowed:
        raise _broken(
            header, key, f"is a list that has {value.type.shown} for each token, not {allowed[0].shown}"
        )
    return value


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace"))


def _broken(header: GGUFHeader, key: str, what: str) -> BrokenModelFile:
    where = header.fields[key].offset
    return damaged(header.path, f"{key} {what}", where)
