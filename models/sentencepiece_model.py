"""Reads tokenizer.model, a protocol buffer of SentencePiece, without its library.

Source of the field numbers: sentencepiece_model.proto. Only what a BPE vocabulary needs is read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.errors import BrokenModelFile, UnsupportedModel
from models.json_file import optional_json
from models.vocabulary import SPACE, Draft, TokenType

MAX_BYTES = 64 * 2**20
BPE = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary."""

    text: str
    score: float
    type: int
    """1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte: GGUF's numbers too."""


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The vocabulary, and how text is prepared for it."""

    pieces: tuple[Piece, ...]
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read(path: Path) -> SentencePieceModel:
    """A tokenizer.model.

    Raises:
        BrokenModelFile: not such a file, or damaged.
        UnsupportedModel: not of the BPE kind.
    """
    if path.stat().st_size > MAX_BYTES:
        raise BrokenModelFile(f"{path} has over {MAX_BYTES >> 20} MiB, too much for a tokenizer")
    try:
        return _model(path, path.read_bytes())
    except (IndexError, ValueError, struct.error):
        raise BrokenModelFile(f"{path} is damaged or no SentencePiece model: download it again") from None


def draft(path: Path, vocab_size: int) -> Draft:
    """The vocabulary of a tokenizer.model.

    Raises:
        BrokenModelFile: damaged, or it doesn't fit the embedding.
        UnsupportedModel: not of the BPE kind, or without byte tokens.
    """
    model = read(path)
    if len(model.pieces) > vocab_size:
        raise BrokenModelFile(
            f"{path} has {len(model.pieces)} tokens, but the embedding has {vocab_size} rows: "
            "the files don't belong together"
        )
    rest = vocab_size - len(model.pieces)
    result = Draft(
        model="llama",
        pre="default",
        tokens=[piece.text for piece in model.pieces] + [None] * rest,
        types=[piece.type for piece in model.pieces] + [TokenType.UNUSED] * rest,
        scores=[piece.score for piece in model.pieces] + [0.0] * rest,
        merges=[],
        add_bos=True,
        add_eos=False,
        add_space_prefix=model.add_dummy_prefix,
        notes=[],
    )
    for i, token in enumerate(result.tokens):
        if token is not None and result.types[i] == TokenType.USER_DEFINED:
            # Matched in the text as it comes, where a space is a space.
            result.tokens[i] = token.replace(SPACE, " ")
    added = optional_json(path.parent / "added_tokens.json")
    entries = [{"id": i, "content": token, "special": True} for token, i in added.items()]
    result.place_added(path.parent / "added_tokens.json", entries, ())
    if result.types.count(TokenType.BYTE) != 256:
        raise UnsupportedModel(f"{path}: not all 256 byte tokens are there: llama.cpp needs them")
    return result


def _model(path: Path, raw: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    kind, prefix, squeeze = 1, True, True
    for number, value in _fields(raw):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            kind = next((v for n, v in _fields(value) if n == 3 and isinstance(v, int)), kind)
        elif number == 3 and isinstance(value, bytes):
            flags = {n: bool(v) for n, v in _fields(value) if isinstance(v, int)}
            prefix, squeeze = flags.get(3, True), flags.get(4, True)
    if not pieces:
        raise ValueError("no pieces")
    if kind != BPE:
        raise UnsupportedModel(f"{path} is a SentencePiece model of the unigram kind: only BPE is supported")
    return SentencePieceModel(tuple(pieces), prefix, squeeze)


def _piece(raw: bytes) -> Piece:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(raw):
        if number == 1 and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return Piece(text, score, kind)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: varints as int, all else as bytes."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if wire == 2:
            length, at = _varint(raw, at)
        elif wire in {1, 5}:
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + length > len(raw):
            raise ValueError("cut off")
        yield key >> 3, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")
