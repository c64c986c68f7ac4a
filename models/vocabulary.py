"""A model's vocabulary in GGUF's terms, and one in the making."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from models.errors import BrokenModelFile

SPACE = "\u2581"  # SentencePiece writes a space as "▁"


class TokenType(IntEnum):
    """llama.cpp's types of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


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
class Draft:
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

    def place_added(self, path: Path, added: Any, vocab: Collection[str]) -> None:
        """Put in the tokens that were added to a trained vocabulary.

        Args:
            path: the file, for messages.
            added: entries with "id", "content" and "special", as tokenizer.json lists them.
            vocab: the trained vocabulary.

        Raises:
            BrokenModelFile: an entry makes no sense.
        """
        dropped = []
        for entry in added if isinstance(added, list) else ():
            i, token = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
            if not isinstance(i, int) or isinstance(i, bool) or i < 0 or not isinstance(token, str):
                raise BrokenModelFile(f"{path}: an added token makes no sense: {str(entry)[:100]}")
            if i >= len(self.tokens):
                dropped.append(token)
                continue
            self.tokens[i] = token
            if entry.get("special"):
                self.types[i] = TokenType.CONTROL
            elif self.model == "llama" and SPACE in token and token in vocab:
                # Text has no "▁" before it is prepared: such a token comes of merges, never of a match.
                self.types[i] = TokenType.NORMAL
            else:
                self.types[i] = TokenType.USER_DEFINED
        if dropped:
            self.notes.append(
                f"{len(dropped)} added tokens have no row in the embedding and were left out: "
                f"{', '.join(dropped[:5])}"
            )
