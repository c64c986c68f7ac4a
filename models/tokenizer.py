"""Reads a Hugging Face tokenizer into the vocabulary that a GGUF file holds.

Two kinds are known: byte-level BPE as in GPT-2 (tokens, merges and a pre-tokenizer), and BPE as in
SentencePiece (tokens with scores, and a token for each byte). tokenizer.json is the authority, because it
is what transformers runs; tokenizer.model is read where there is no tokenizer.json.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from models import pretokenizer, sentencepiece_model
from models.config import read_json
from models.errors import BrokenModelFile, UnsupportedModel

MAX_TEMPLATE_BYTES = 2**20
SPACE = "\u2581"  # SentencePiece writes a space as "▁"


class TokenType(IntEnum):
    """llama.cpp's types of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL = ("bos", "eos", "unk", "sep", "pad", "mask")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What turns text into tokens, in GGUF's terms."""

    model: Literal["gpt2", "llama"]
    """Byte-level BPE, or SentencePiece's BPE."""
    pre: str
    """The pre-tokenizer; "default" for SentencePiece."""
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    """SentencePiece's, higher merges first; empty for byte-level BPE."""
    merges: tuple[str, ...]
    """Byte-level BPE's, "left right", first merges first; empty for SentencePiece."""
    special: Mapping[str, int]
    """Ids of "bos", "eos", "unk", "sep", "pad", "mask" and "eot", of those that there are."""
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None
    more_templates: Mapping[str, str]
    """Named templates besides the default one."""
    notes: tuple[str, ...]
    """What could not be carried over, one sentence each."""


@dataclass(slots=True)
class _Draft:
    """A vocabulary in the making."""

    model: Literal["gpt2", "llama"]
    pre: str
    tokens: list[str | None]
    types: list[int]
    scores: list[float]
    merges: list[str]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    notes: list[str]


def read(folder: Path, vocab_size: int) -> Vocabulary:
    """The vocabulary of a checkpoint.

    Args:
        folder: with tokenizer.json or tokenizer.model, and their companions.
        vocab_size: rows of the embedding; ids that no token has become unused tokens.

    Raises:
        FileNotFoundError: no tokenizer.
        BrokenModelFile: damaged, or it doesn't fit the embedding.
        UnsupportedModel: of a kind that llama.cpp, or this reader, doesn't know.
    """
    config = _optional_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        draft = _from_json(folder / "tokenizer.json", vocab_size)
    elif (folder / "tokenizer.model").is_file():
        draft = _from_sentencepiece(folder / "tokenizer.model", vocab_size)
    else:
        raise FileNotFoundError(f"{folder} has neither tokenizer.json nor tokenizer.model: no tokenizer")
    if isinstance(config.get("add_bos_token"), bool) or isinstance(config.get("add_eos_token"), bool):
        draft.add_bos = config.get("add_bos_token") is True
        draft.add_eos = config.get("add_eos_token") is True
    tokens = _filled(draft, folder)
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise BrokenModelFile(
            f"{folder}: {len(tokens) - len(ids)} tokens of the tokenizer have the same text"
        )
    template, more = _templates(folder, config)
    special = _special_ids(folder, config, ids, template)
    if "eos" not in special:
        raise BrokenModelFile(f"{folder}: the tokenizer names no token that ends a text (eos_token)")
    if draft.add_bos and "bos" not in special:
        draft.add_bos = False
    return Vocabulary(
        model=draft.model,
        pre=draft.pre,
        tokens=tokens,
        types=tuple(draft.types),
        scores=tuple(draft.scores),
        merges=tuple(draft.merges),
        special=special,
        add_bos=draft.add_bos,
        add_eos=draft.add_eos,
        add_space_prefix=draft.add_space_prefix,
        chat_template=template,
        more_templates=more,
        notes=tuple(draft.notes),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


# --- tokenizer.json


def _from_json(path: Path, vocab_size: int) -> _Draft:
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
    draft = _Draft(
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
    _place_added(draft, path, raw.get("added_tokens"), model["vocab"])
    pairs = _pairs(path, model["merges"])
    if byte_level:
        draft.pre = pretokenizer.name_of(
            raw.get("pre_tokenizer"), ignore_merges=bool(model.get("ignore_merges")), where=path
        )
        draft.merges = [f"{left} {right}" for left, right in pairs]
        _check_normalizer(draft, path, raw.get("normalizer"))
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


def _place(draft: _Draft, path: Path, vocab: Mapping[str, Any]) -> None:
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


def _place_added(draft: _Draft, path: Path, added: Any, vocab: Mapping[str, Any]) -> None:
    dropped = []
    for entry in added if isinstance(added, list) else ():
        i, token = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
        if not isinstance(i, int) or isinstance(i, bool) or i < 0 or not isinstance(token, str):
            raise BrokenModelFile(f"{path}: an added token makes no sense: {str(entry)[:100]}")
        if i >= len(draft.tokens):
            dropped.append(token)
            continue
        draft.tokens[i] = token
        if entry.get("special"):
            draft.types[i] = TokenType.CONTROL
        elif draft.model == "llama" and SPACE in token and token in vocab:
            # Text has no "▁" before it is prepared, so such a token comes from merges, never from a match.
            draft.types[i] = TokenType.NORMAL
        else:
            draft.types[i] = TokenType.USER_DEFINED
    if dropped:
        draft.notes.append(
            f"{len(dropped)} added tokens have no row in the embedding and were left out: "
            f"{', '.join(dropped[:5])}"
        )


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


def _scores(draft: _Draft, pairs: list[tuple[str, str]]) -> list[float]:
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


def _check_normalizer(draft: _Draft, path: Path, section: Any) -> None:
    kinds = set(_kinds(section)) - {"Sequence"}
    if kinds == {"NFC"}:
        draft.notes.append(
            "the tokenizer composes characters (NFC) and llama.cpp does not: give it composed text"
        )
    elif kinds:
        raise UnsupportedModel(
            f"{path}: the normalizer {'+'.join(sorted(kinds))} has no counterpart in llama.cpp"
        )


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


# --- tokenizer.model


def _from_sentencepiece(path: Path, vocab_size: int) -> _Draft:
    model = sentencepiece_model.read(path)
    if len(model.pieces) > vocab_size:
        raise BrokenModelFile(
            f"{path} has {len(model.pieces)} tokens, but the embedding has {vocab_size} rows: "
            "the files don't belong together"
        )
    rest = vocab_size - len(model.pieces)
    draft = _Draft(
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
    for i, token in enumerate(draft.tokens):
        if token is not None and draft.types[i] == TokenType.USER_DEFINED:
            # Matched in the text as it comes, where a space is a space.
            draft.tokens[i] = token.replace(SPACE, " ")
    added = _optional_json(path.parent / "added_tokens.json")
    entries = [{"id": i, "content": token, "special": True} for token, i in added.items()]
    _place_added(draft, path.parent / "added_tokens.json", entries, {})
    if draft.types.count(TokenType.BYTE) != 256:
        raise UnsupportedModel(f"{path}: not all 256 byte tokens are there: llama.cpp needs them")
    return draft


# --- both


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token[5] == ">" and token[3:5].isalnum()


def _filled(draft: _Draft, folder: Path) -> tuple[str, ...]:
    """All tokens, with names for the ids that have none."""
    taken = {token for token in draft.tokens if token is not None}
    tokens = []
    for i, token in enumerate(draft.tokens):
        name = token
        if name is None:
            name = f"[PAD{i}]"
            while name in taken:
                name = f"[{name}]"
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BrokenModelFile(f"{folder}: token {i} of the tokenizer is not text") from None
        tokens.append(name)
    return tuple(tokens)


def _special_ids(
    folder: Path, config: Mapping[str, Any], ids: Mapping[str, int], template: str | None
) -> dict[str, int]:
    """Ids of the special tokens: as the tokenizer names them, else as the model's config does."""
    named = _optional_json(folder / "special_tokens_map.json")
    model = _optional_json(folder / "config.json")
    model = {**(model["text_config"] if isinstance(model.get("text_config"), dict) else {}), **model}
    special = {}
    for kind in SPECIAL:
        for source in (config, named):
            token = source.get(f"{kind}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and token in ids:
                special[kind] = ids[token]
                break
        else:
            for i in _ints(model.get(f"{kind}_token_id")):
                if i < len(ids):
                    special[kind] = i
                    break
    tokens = list(ids)
    ends = _ints(_optional_json(folder / "generation_config.json").get("eos_token_id")) or _ints(
        model.get("eos_token_id")
    )
    for i in ends:
        if i < len(tokens) and i != special.get("eos"):
            special.setdefault("eos", i)
            if template is not None and tokens[i] in template:
                special.setdefault("eot", i)
    if special.get("eot") == special.get("eos"):
        special.pop("eot", None)
    return special


def _ints(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool) and i >= 0]


def _templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The chat template and the named ones besides; a file of its own goes before tokenizer_config.json."""
    named: dict[str, str] = {}
    value = config.get("chat_template")
    if value is None:
        value = _optional_json(folder / "chat_template.json").get("chat_template")
    if isinstance(value, str):
        named["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = entry["template"]
    more = folder / "additional_chat_templates"
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(more.glob("*.jinja"))} if more.is_dir() else {}
    for name, path in files.items():
        if path.is_file():
            if path.stat().st_size > MAX_TEMPLATE_BYTES:
                raise BrokenModelFile(
                    f"{path} has over {MAX_TEMPLATE_BYTES >> 20} MiB, too much for a template"
                )
            named[name] = path.read_bytes().decode("utf-8", "replace")
    named = {name: text for name, text in named.items() if name.replace("_", "").isalnum() and text}
    return named.pop("default", None), named
