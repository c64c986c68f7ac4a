"""The tokenizer of a GGUF file as transformers reads it: tokenizer.json and its companions.

Made are byte-level BPE, for those of llama.cpp's pre-tokenizers whose expression is known here, and
SentencePiece's BPE. Texts become the tokens that the model's own tokenizer makes of them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from models.errors import UnsupportedModel, damaged
from models.gguf import GGUFHeader, LazyArray
from models.pretokenizer import COMPOSES, IGNORES_MERGES, STARTS_WITH_BOS, steps_named
from models.vocabulary import SPACE, TokenType

PREFIX = "tokenizer.ggml."
SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # the format spells it so
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unk": 0}
"""What llama.cpp assumes of SentencePiece's vocabularies."""
ENDS = ("eos_token_id", "eot_token_id")
FILLER = re.compile(r"^\[+PAD\d+\]+$")
"""Names that converters give to rows of the embedding without a token."""

Object = dict[str, Any]


def tokenizer_files(header: GGUFHeader) -> dict[str, Object]:
    """What stands in tokenizer.json, tokenizer_config.json and generation_config.json.

    Raises:
        BrokenModelFile: lists that don't fit each other.
        UnsupportedModel: a kind of tokenizer that can't be made; the message names it.
    """
    return _Vocabulary(header).files()


class _Vocabulary:
    """A header's vocabulary."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self.model = header.metadata.get(PREFIX + "model")
        if self.model not in {"gpt2", "llama"}:
            raise UnsupportedModel(
                f"{header.path} has a tokenizer of the kind {str(self.model)[:64]!r}, which can't be made "
                "into one for transformers: byte-level BPE (gpt2) and SentencePiece's BPE (llama) can; give "
                "the original checkpoint's folder"
            )
        self.tokens = [str(token) for token in self._list("tokens")]
        types = self._list("token_type")
        self.types = [int(kind) for kind in types] or [int(TokenType.NORMAL)] * len(self.tokens)
        while self.tokens and self.types[-1] == TokenType.UNUSED and FILLER.match(self.tokens[-1]):
            self.tokens.pop()
            self.types.pop()
        if len(set(self.tokens)) != len(self.tokens):
            raise UnsupportedModel(
                f"{header.path}: {len(self.tokens) - len(set(self.tokens))} of its tokens have the same "
                "text, which tokenizer.json can't hold: give the original checkpoint's folder"
            )
        self.special = self._special()

    def files(self) -> dict[str, Object]:
        """All of them."""
        is_bpe = self.model == "gpt2"
        tokenizer: Object = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            **(self._byte_level() if is_bpe else self._sentencepiece()),
            "post_processor": self._template(),
        }
        return {
            "tokenizer.json": tokenizer,
            "tokenizer_config.json": self._config(),
            "generation_config.json": self._generation(),
        }

    def _list(self, name: str) -> Sequence[Any]:
        value = self.header.metadata.get(PREFIX + name)
        return value.read() if isinstance(value, LazyArray) else ()

    def _flag(self, name: str, otherwise: bool) -> bool:
        value = self.header.metadata.get(PREFIX + name)
        return value if isinstance(value, bool) else otherwise

    def _special(self) -> dict[str, int]:
        found = dict(SENTENCEPIECE_IDS) if self.model == "llama" else {}
        for kind, key in SPECIAL.items():
            value = self.header.metadata.get(PREFIX + key)
            if isinstance(value, int) and not isinstance(value, bool):
                found[kind] = value
        return {kind: i for kind, i in found.items() if 0 <= i < len(self.tokens)}

    @property
    def _pre(self) -> str:
        pre = self.header.metadata.get(PREFIX + "pre")
        return pre if isinstance(pre, str) else ""

    @property
    def _adds(self) -> tuple[bool, bool]:
        """Whether a text gets a token in front, and one behind."""
        starts = self.model == "llama" or self._pre in STARTS_WITH_BOS
        bos = self._flag("add_bos_token", starts) and "bos" in self.special
        return bos, self._flag("add_eos_token", False) and "eos" in self.special

    def _added(self) -> list[Object]:
        kinds = {TokenType.CONTROL: True, TokenType.UNKNOWN: True, TokenType.USER_DEFINED: False}
        return [
            {
                "id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": kinds[TokenType(kind)],
            }
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in kinds
        ]  # fmt: skip

    def _byte_level(self) -> Object:
        steps = steps_named(self._pre, self.header.path)
        merges = [str(merge).partition(" ") for merge in self._list("merges")]
        known = set(self.tokens)
        for left, _, right in merges:
            if left + right not in known or left not in known or right not in known:
                raise UnsupportedModel(
                    f"{self.header.path}: the merge {left!r} + {right!r} makes no token, which "
                    "tokenizer.json can't hold: give the original checkpoint's folder"
                )
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {
            "normalizer": {"type": "NFC"} if self._pre in COMPOSES else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)},
            "decoder": {**byte_level, "use_regex": True},
            "model": self._bpe(
                [[left, right] for left, _, right in merges], ignore_merges=self._pre in IGNORES_MERGES
            ),
        }

    def _bpe(self, merges: list[list[str]], **options: Any) -> Object:
        return {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            **options, "vocab": {token: i for i, token in enumerate(self.tokens)}, "merges": merges,
        }  # fmt: skip

    def _sentencepiece(self) -> Object:
        prefix = self._flag("add_space_prefix", True)
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        steps: list[Object] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        decoders: list[Object] = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if prefix:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        unknown = self.special.get("unk")
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*steps, spaces]},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": self._bpe(
                list(self._merges()),
                unk_token=None if unknown is None else self.tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            ),
        }

    def _merges(self) -> Iterable[list[str]]:
        """SentencePiece joins the two neighbours whose joined text is the token of the best score: each way
        to make a token of two is a merge, those of better tokens first."""
        scores = self._list("scores")
        if len(scores) < len(self.tokens):
            raise damaged(self.header.path, f"it has {len(scores)} scores for {len(self.tokens)} tokens")
        parts = {
            token: i
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind == TokenType.NORMAL
        }
        for token, _ in sorted(parts.items(), key=lambda entry: (-scores[entry[1]], entry[1])):
            splits = [(token[:n], token[n:]) for n in range(1, len(token))]
            known = [(parts[a], parts[b], a, b) for a, b in splits if a in parts and b in parts]
            for _, _, left, right in sorted(known):
                yield [left, right]

    def _template(self) -> Object | None:
        bos, eos = self._adds
        before = [self.special["bos"]] if bos else []
        after = [self.special["eos"]] if eos else []
        if not before and not after:
            return None

        def around(name: str, number: int) -> list[Object]:
            def tokens(ids: list[int]) -> list[Object]:
                return [{"SpecialToken": {"id": self.tokens[i], "type_id": number}} for i in ids]

            return [*tokens(before), {"Sequence": {"id": name, "type_id": number}}, *tokens(after)]

        return {
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": [*around("A", 0), *around("B", 1)],
            "special_tokens": {
                self.tokens[i]: {"id": self.tokens[i], "ids": [i], "tokens": [self.tokens[i]]}
                for i in {*before, *after}
            },
        }

    def _config(self) -> Object:
        bos, eos = self._adds
        config: Object = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": bos,
            "add_eos_token": eos,
            "clean_up_tokenization_spaces": False,
        }
        context = self.header.hyper("context_length")
        if isinstance(context, int):
            config["model_max_length"] = context
        config |= {f"{kind}_token": self.tokens[i] for kind, i in self.special.items()}
        template = self._chat_template()
        return config | ({} if template is None else {"chat_template": template})

    def _chat_template(self) -> str | list[Object] | None:
        metadata = self.header.metadata
        default = metadata.get("tokenizer.chat_template")
        named = metadata.get("tokenizer.chat_templates")
        names = [str(name) for name in named.read()] if isinstance(named, LazyArray) else []
        found = [
            ("default", default),
            *((name, metadata.get(f"tokenizer.chat_template.{name}")) for name in names),
        ]
        templates = [
            {"name": name, "template": text} for name, text in found if isinstance(text, str) and text
        ]
        if len(templates) > 1:
            return templates
        return default if isinstance(default, str) and default else None

    def _generation(self) -> Object:
        ends = [self.header.metadata.get(PREFIX + key) for key in ENDS]
        ids = [i for i in dict.fromkeys(ends) if isinstance(i, int) and 0 <= i < len(self.tokens)]
        if not ids and "eos" in self.special:
            ids = [self.special["eos"]]
        found: Object = {
            f"{kind}_token_id": self.special[kind] for kind in ("bos", "pad") if kind in self.special
        }
        if ids:
            found["eos_token_id"] = ids if len(ids) > 1 else ids[0]
        return found
