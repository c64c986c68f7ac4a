"""Reads tokenizer.json: byte-level BPE as in GPT-2, and BPE with byte tokens as in SentencePiece."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models import pretokenizer
from models.errors import BrokenModelFile, UnsupportedModel
from models.json_file import read_json
from models.vocabulary import SPACE, Draft, TokenType


def read(path: Path, vocab_size: int, *, composes: bool = False) -> Draft:
    """The vocabulary of a tokenizer.json.

    Args:
        path: the file.
        vocab_size: rows of the embedding.
        composes: characters are composed (NFC) whatever the file says of it.

    Raises:
        BrokenModelFile: damaged, or it doesn't fit the embedding.
        UnsupportedModel: of a kind that llama.cpp, or this reader, doesn't know.
    """
    raw = read_json(path)
    model = raw.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        kind = model.get("type") if isinstance(model, dict) else None
        raise UnsupportedModel(f"{path}: a tokenizer of type {kind!r}: only BPE is supported")
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("merges"), list):
        raise UnsupportedModel(f"{path}: a tokenizer of type {model.get('type')!r}: only BPE is supported")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise UnsupportedModel(f"{path}: a BPE tokenizer that marks parts of words: llama.cpp has none such")
    byte_level = "ByteLevel" in set(_kinds(raw.get("pre_tokenizer"))) | set(_kinds(raw.get("decoder")))
    if not byte_level and not model.get("byte_fallback"):
        raise UnsupportedModel(f"{path}: a BPE tokenizer that is neither byte-level nor falls back to bytes")
    add_bos, add_eos = _bos_and_eos(raw.get("post_processor"))
    draft = Draft(
        model="gpt2" if byte_level else "llama",
        pre="default",
        tokens=[None] * vocab_size,
        types=[TokenType.UNUSED] * vocab_size,
        scores=[],
        merges=[],
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=False,
        notes=[],
    )
    _place(draft, path, model["vocab"])
    draft.place_added(path, raw.get("added_tokens"), model["vocab"])
    pairs = _pairs(path, model["merges"])
    if byte_level:
        composes = _composes(path, raw.get("normalizer")) or composes
        draft.pre = pretokenizer.name_of(
            raw.get("pre_tokenizer"),
            ignore_merges=bool(model.get("ignore_merges")),
            composes=composes,
            where=path,
        )
        if composes and draft.pre not in pretokenizer.COMPOSES:
            draft.notes.append(
                "the tokenizer composes characters (NFC), which its name in the result doesn't say: "
                "give it composed text"
            )
        draft.merges = [f"{left} {right}" for left, right in pairs]
        return draft
    draft.add_space_prefix = _space_prefix(path, raw.get("normalizer"), raw.get("pre_tokenizer"))
    draft.scores = _scores(draft, pairs)
    for i, token in enumerate(draft.tokens):
        if draft.types[i] == TokenType.NORMAL and token is not None and _is_byte(token):
            draft.types[i] = TokenType.BYTE
        elif token is not None and token == model.get("unk_token"):
            draft.types[i] = TokenType.UNKNOWN
    if draft.types.count(TokenType.BYTE) != 256:
        raise UnsupportedModel(
            f"{path}: {draft.types.count(TokenType.BYTE)} of 256 byte tokens: llama.cpp needs them all"
        )
    return draft


def _kinds(section: Any) -> Iterator[str]:
    """The types of a section and of the parts that it is made of."""
    if isinstance(section, dict):
        yield str(section.get("type"))
        for key in ("pretokenizers", "decoders", "normalizers", "processors"):
            for part in section.get(key) or ():
                yield from _kinds(part)


def _place(draft: Draft, path: Path, vocab: Mapping[str, Any]) -> None:
    n = len(draft.tokens)
    for token, i in vocab.items():
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise BrokenModelFile(f"{path}: token {token!r} has the id {i!r}")
        if i >= n:
            raise BrokenModelFile(
                f"{path}: token {token!r} has the id {i}, but the embedding has {n} rows: "
                "the files don't belong together"
            )
        draft.tokens[i] = token
        draft.types[i] = TokenType.NORMAL


def _pairs(path: Path, merges: Sequence[Any]) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(parts, list)
            or len(parts) != 2
            or not all(isinstance(part, str) and part and " " not in part for part in parts)
        ):
            raise BrokenModelFile(f"{path}: a merge makes no sense: {str(merge)[:100]}")
        pairs.append((parts[0], parts[1]))
    return pairs


def _scores(draft: Draft, pairs: list[tuple[str, str]]) -> list[float]:
    """Scores under which SentencePiece merges in the order of tokenizer.json's list.

    SentencePiece joins any two neighbours whose joined text is a token, best score first. So the scores are
    exact only if the list has all splits of each token, one token's together, as transformers makes it from
    a SentencePiece model.
    """
    rank: dict[str, int] = {}
    apart, last = 0, None
    for i, (left, right) in enumerate(pairs):
        token = left + right
        apart += token != last and token in rank
        rank.setdefault(token, i)
        last = token
    listed, known = set(pairs), {token for token in draft.tokens if token is not None}
    missing = sum(
        (token[:i], token[i:]) not in listed
        for token, kind in zip(draft.tokens, draft.types, strict=True)
        if token is not None and kind == TokenType.NORMAL
        for i in range(1, len(token))
        if token[:i] in known and token[i:] in known
    )
    if apart or missing:
        draft.notes.append(
            f"the tokenizer's merges are not SentencePiece's ({missing + apart} differ): "
            "llama.cpp may split some texts otherwise"
        )
    lowest = -float(len(pairs))
    return [-float(rank[t]) if t is not None and t in rank else lowest for t in draft.tokens]


def _composes(path: Path, normalizer: Any) -> bool:
    """Whether characters are composed before all else."""
    kinds = set(_kinds(normalizer)) - {"Sequence"}
    if kinds - {"NFC"}:
        raise UnsupportedModel(
            f"{path}: the normalizer {'+'.join(sorted(kinds))} has no counterpart in llama.cpp"
        )
    return bool(kinds)


def _space_prefix(path: Path, normalizer: Any, pre_tokenizer: Any) -> bool:
    """Whether text gets a space in front."""
    prefix = False
    parts = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "Prepend" and part.get("prepend") == SPACE:
            prefix = True
        elif kind != "Replace" or part.get("pattern") != {"String": " "} or part.get("content") != SPACE:
            raise UnsupportedModel(f"{path}: the normalizer {kind!r} has no counterpart in llama.cpp")
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Metaspace":
        scheme = pre_tokenizer.get(
            "prepend_scheme", "always" if pre_tokenizer.get("add_prefix_space", True) else "never"
        )
        prefix = prefix or scheme != "never"
    return prefix


def _bos_and_eos(section: Any) -> tuple[bool, bool]:
    """Whether the post-processor puts a token before the text, and one after it."""
    if not isinstance(section, dict):
        return False, False
    if section.get("type") == "Sequence":
        pairs = [_bos_and_eos(part) for part in section.get("processors") or ()]
        return any(before for before, _ in pairs), any(after for _, after in pairs)
    if section.get("type") != "TemplateProcessing":
        return False, False
    kinds = [
        "Sequence" if isinstance(item, dict) and "Sequence" in item else "x"
        for item in section.get("single") or ()
    ]
    if "Sequence" not in kinds:
        return False, False
    text = kinds.index("Sequence")
    return text > 0, text < len(kinds) - 1


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token[5] == ">" and token[3:5].isalnum()
