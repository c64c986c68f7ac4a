"""The model's own vocabulary, through llama.cpp."""

import ctypes
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from edgechat.runtimes.llamacpp import abi
from edgechat.runtimes.llamacpp.header import meta
from models.composing import composed
from models.pretokenizer import COMPOSES, LIKE_GPT2

PIECE_BYTES = 64
SURROGATES = re.compile("[\ud800-\udfff]")
CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
SIGNS = re.compile(r" ?(?:[^\w\s]|[_\x1c-\x1f])+")
"""What GPT-2's expression keeps together: neither letters nor digits nor spaces, and one space before."""
NO_TOKEN = -1
NAMED = 1 << 3 | 1 << 4
"""LLAMA_TOKEN_ATTR_CONTROL and _USER_DEFINED."""

# Texts of tokens that end a turn. llama.cpp knows the first group itself and decides case by case (in a
# Harmony vocabulary "<|end|>" only ends a message, in Gemma 4's "</s>" is an HTML tag), so its word counts
# there. The second group are the marks of families whose files often name only "end of text" as the end:
# Llama 4, OpenChat, Command R, HyperCLOVA, EXAONE, Ling, and GLM-4 and Phi, where a model that opens the
# user's turn has ended its own. They count only as control tokens, which no text that a model writes can
# be mistaken for.
KNOWN_TO_LLAMA_CPP = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
ENDS_TURN = (
    "<|eot|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<|endofturn|>", "[|endofturn|]",
    "<|role_end|>", "<|user|>", "<|observation|>",
)  # fmt: skip


class LlamaCppTokenizer:
    """Text to tokens and back. Safe to use from several threads."""

    def __init__(self, model: int, texts: Iterable[int] = ()) -> None:
        """Of a loaded model; it must not be used after the model was freed.

        Args:
            model: llama.cpp's pointer.
            texts: tokens that llama.cpp takes for the end of a turn, though the file calls them plain text.
        """
        self._llama: Any = abi.llama()
        self._vocab = self._llama.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        pre = meta(model, "tokenizer.ggml.pre")
        self._composes = pre in COMPOSES
        self._keeps_signs_together = pre in LIKE_GPT2
        self.n_vocab: int = self._llama.llama_vocab_n_tokens(self._vocab)
        bos = self._llama.llama_vocab_bos(self._vocab)
        self.bos_id: int | None = bos if 0 <= bos < self.n_vocab else None
        self.add_bos: bool = self.bos_id is not None and self._llama.llama_vocab_get_add_bos(self._vocab)
        for token in texts:
            self._pieces[token] = self._piece(token, special=True)
        self.eog_ids: tuple[int, ...] = tuple(sorted(self._find_eog() - self._pieces.keys()))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, without a BOS. `special`: read "<|im_end|>" as the one token it names.

        Characters are composed (Unicode's NFC) where the model's own tokenizer does it. Lone surrogates,
        which no UTF-8 can carry, are read as U+FFFD.

        Raises:
            ValueError: the text is longer than llama.cpp can count (2 GiB).
        """
        if self._composes:
            text = self._composed(text)
        if self._keeps_signs_together and CONTROLS.search(text) and self._unknown:
            text = self._without_unknown(text)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            data = SURROGATES.sub("\ufffd", text).encode()
        return self._tokens(data, special)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; a control token stands for none.

        Raises:
            ValueError: no such token.
        """
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token, special=False)
        return piece

    def name(self, token: int) -> str:
        """A token's text, control tokens included ("<|im_end|>").

        Raises:
            ValueError: no such token.
        """
        return self._piece(token, special=True).decode("utf-8", "replace")

    def _tokens(self, data: bytes, special: bool) -> list[int]:
        if not data:
            return []
        if len(data) >= 2**31 - 16:
            raise ValueError(f"a text of {len(data)} bytes is too long to tokenize at once")
        room = len(data) // 2 + 16
        while True:
            tokens = (ctypes.c_int32 * room)()
            n = self._llama.llama_tokenize(self._vocab, data, len(data), tokens, room, False, special)
            if n >= 0:
                return tokens[:n]
            if -n <= room:
                raise ValueError(f"a text of {len(data)} bytes is too long to tokenize at once")
            room = -n

    def _composed(self, text: str) -> str:
        """`text` in NFC, but for the names of tokens in it: those are found beforehand."""
        if composed(text) == text:
            return text
        parts = self._named.split(text)
        parts[::2] = map(composed, parts[::2])
        return "".join(parts)

    @cached_property
    def _unknown(self) -> dict[int, None]:
        """The control characters that the vocabulary has no token for, as str.translate drops them."""
        return {i: None for i in (*range(9), *range(14, 32), 127) if not self._tokens(bytes([i]), False)}

    def _without_unknown(self, text: str) -> str:
        """`text` without characters that have no token, where their neighbours may become one token.

        llama.cpp drops such a character after it has merged its neighbours, the model's own tokenizer
        before. Where it has no two neighbours among the signs it stays, so that text is split as it was.
        """

        def known(found: re.Match[str]) -> str:
            signs = found[0].translate(self._unknown)
            return signs if len(signs) > 1 else found[0]

        parts = self._named.split(text)
        parts[::2] = (SIGNS.sub(known, part) for part in parts[::2])
        return "".join(parts)

    @cached_property
    def _named(self) -> re.Pattern[str]:
        """The names of tokens that are not parts of words, such as "<|im_end|>"; longer ones win."""
        llama, vocab = self._llama, self._vocab
        named = (t for t in range(self.n_vocab) if llama.llama_vocab_get_attr(vocab, t) & NAMED)
        names = sorted(filter(None, map(self.name, named)), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")

    def _piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"no token {token}: the vocabulary has {self.n_vocab}")
        room = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._llama.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n  # pieces longer than the buffer exist: runs of spaces, lines of dashes

    def _find_eog(self) -> set[int]:
        """Every token that ends a turn.

        llama.cpp has no list of them, and asking for each of 262,144 tokens takes a tenth of a second, so
        all that its own rules can mark is asked for: the named special tokens and the texts that it knows.
        """
        llama, vocab = self._llama, self._vocab
        candidates = {
            llama.llama_vocab_eos(vocab),
            llama.llama_vocab_eot(vocab),
            llama.llama_vocab_fim_pad(vocab),
            llama.llama_vocab_fim_rep(vocab),
            llama.llama_vocab_fim_sep(vocab),
            *(self._token_named(text) for text in KNOWN_TO_LLAMA_CPP),
        }
        in_range = {token for token in candidates if 0 <= token < self.n_vocab}
        found = {token for token in in_range if llama.llama_vocab_is_eog(vocab, token)}
        for text in ENDS_TURN:
            token = self._token_named(text)
            if token != NO_TOKEN and llama.llama_vocab_is_control(vocab, token):
                found.add(token)
        return found

    def _token_named(self, text: str) -> int:
        """The one token that `text` names, or NO_TOKEN."""
        tokens = self.encode(text)
        if len(tokens) == 1 and self.name(tokens[0]) == text:
            return tokens[0]
        return NO_TOKEN
