"""Answers in a given form: which tokens may come next, by a JSON schema or a grammar.

The form is compiled, and each step's tokens are found, by llguidance: from a trie of the vocabulary and a
parser (Earley 1970) over a lexer, in microseconds a step for most of them. It needs the tokens' bytes alone,
so it is the same for every runtime.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgechat.engine.sampling import Row
from edgechat.errors import UnsupportedError, UsageError
from edgechat.records import Grammar
from edgechat.runtimes.base import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r" |\n[ \t]{0,40}"
"""What JSON may have between its parts: a model left free to write line breaks may never end."""
FREE = '%llguidance { "no_forcing": true }\n'
"""Any tokens that write the form, not only those that its text alone would be tokenized to: what the model
makes of the form is then the target's distribution on it, and drafts are judged by that."""
_CONTROL = b"\xff"
"""In front of the names of control tokens, which no text is taken for."""


class DeadEnd(Exception):
    """The form allows no token of the vocabulary here."""


class Grammars:
    """Makes forms for one vocabulary, whose trie is built for the first one."""

    def __init__(self, tokenizer: Tokenizer, eog: Iterable[int]) -> None:
        """For a model's tokenizer; `eog` are the tokens that end an answer."""
        self._tokenizer = tokenizer
        self._eog = sorted(eog)
        self._trie: LLTokenizer | None = None

    def form(self, grammar: Grammar) -> "Form":
        """What an answer's sampler goes by.

        Raises:
            UsageError: the schema or the grammar makes no sense.
            UnsupportedError: llguidance is not installed, or the model has no token that ends an answer.
        """
        if not self._eog:
            raise UnsupportedError("the model has no token that ends a text, so no form has an end")
        try:
            import llguidance
            from llguidance.gbnf_to_lark import any_to_lark
        except ImportError:
            raise UnsupportedError(
                "answers in a given form need llguidance, which is not installed: pip install llguidance"
            ) from None
        try:
            lark = _of_schema(grammar.text) if grammar.kind == "json_schema" else any_to_lark(grammar.text)
        except Exception as error:  # llguidance raises bare ones too
            raise UsageError(_sentence(grammar, str(error))) from None
        source = llguidance.LLMatcher.grammar_from_lark(FREE + lark.removeprefix("%llguidance {}"))
        if self._trie is None:
            wrapper = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._eog))
            # Without precomputed slices of the vocabulary: they take as long to make as the trie, and save
            # milliseconds in a few steps.
            self._trie = llguidance.LLTokenizer(wrapper, eos_token=self._eog, slices=[])
        matcher = llguidance.LLMatcher(self._trie, source, log_level=0)
        if matcher.is_error():
            raise UsageError(_sentence(grammar, matcher.get_error()))
        return Form(matcher, self._tokenizer.n_vocab, self._eog)


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer, eog: Sequence[int]) -> None:
        pieces = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]
        self.eos_token_id = eog[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.tokens = pieces
        for token in self.special_token_ids:
            self.tokens[token] = _CONTROL + tokenizer.name(token).encode()
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(), special=False)


class Form:
    """A step of one answer's sampler: nothing but what the form allows."""

    def __init__(self, matcher: "LLMatcher", n_vocab: int, eog: Iterable[int]) -> None:
        """Begin at the form's start."""
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._eog = list(eog)
        self._bits = np.zeros((n_vocab + 31) // 32, np.uint32)

    def apply(self, row: Row) -> None:
        """Set what is not allowed to -inf, in place. The end of the turn is allowed where the form is whole.

        Raises:
            DeadEnd: nothing is allowed.
        """
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        allowed = np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little")
        if not self._matcher.is_accepting():  # llguidance gives up where nothing can follow
            allowed[self._eog] = 0
        if not allowed.any():
            raise DeadEnd(" ".join(self._matcher.get_error().split()) or "the vocabulary has none")
        row[: self._n_vocab][allowed == 0] = -np.inf
        row[self._n_vocab :] = -np.inf

    def accept(self, token: int) -> None:
        """Go on behind `token`.

        Raises:
            DeadEnd: it was not allowed.
        """
        if token not in self._eog and not self._matcher.consume_token(token):
            raise DeadEnd(" ".join(self._matcher.get_error().split()))


def _of_schema(text: str) -> str:
    """A JSON schema as a grammar.

    Raises:
        ValueError: it is no JSON, or no schema.
        RecursionError: it is nested too deeply.
    """
    schema = json.loads(text)
    if isinstance(schema, dict):
        ours, theirs = {"whitespace_pattern": WHITESPACE}, schema.get("x-guidance")
        schema["x-guidance"] = {**ours, **theirs} if isinstance(theirs, dict) else ours
    elif not isinstance(schema, bool):
        raise ValueError("it must be an object, or true")
    return f"start: %json {json.dumps(schema)}"


def _sentence(grammar: Grammar, why: str) -> str:
    """Without the place in what the grammar was translated to, and the lines around it."""
    why = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", why)
    why = re.split(r"\n +\d+ \| ", why, maxsplit=1)[0]
    what = "JSON schema" if grammar.kind == "json_schema" else "grammar"
    return f"the {what} can't be used: {' '.join(why.split())[:300]}"
