"""Reads a Hugging Face tokenizer into the vocabulary that a GGUF file holds.

Two kinds are known: byte-level BPE as in GPT-2 (tokens, merges and a pre-tokenizer), and BPE as in
SentencePiece (tokens with scores, and a token for each byte). tokenizer.json is the authority, because it
is what transformers runs; tokenizer.model is read where there is no tokenizer.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models import sentencepiece_model, tokenizer_json
from models.errors import BrokenModelFile
from models.json_file import optional_json
from models.vocabulary import Draft, TokenType, Vocabulary

__all__ = ["TokenType", "Vocabulary", "read"]

MAX_TEMPLATE_BYTES = 2**20

COMPOSING = frozenset({"Qwen2Tokenizer", "Qwen3_5Tokenizer", "CohereTokenizer", "GPTNeoXTokenizer"})
"""Classes of transformers that compose characters (NFC), whether tokenizer.json says so or not."""

SPECIAL = ("bos", "eos", "unk", "sep", "pad", "mask")


def is_in(folder: Path) -> bool:
    """Whether there is a tokenizer for `read`, sound or not."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))


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
    config = optional_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        composes = str(config.get("tokenizer_class")).removesuffix("Fast") in COMPOSING
        draft = tokenizer_json.read(folder / "tokenizer.json", vocab_size, composes=composes)
    elif (folder / "tokenizer.model").is_file():
        draft = sentencepiece_model.draft(folder / "tokenizer.model", vocab_size)
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


def _filled(draft: Draft, folder: Path) -> tuple[str, ...]:
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
    named = optional_json(folder / "special_tokens_map.json")
    model = optional_json(folder / "config.json")
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
    ends = _ints(optional_json(folder / "generation_config.json").get("eos_token_id")) or _ints(
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
        value = optional_json(folder / "chat_template.json").get("chat_template")
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
