"""Answers in a given form, against what a list of all texts, json and llama.cpp's own grammars say."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgechat.engine.grammar import DeadEnd, Form, Grammars
from edgechat.errors import ExitCode, UnsupportedError, UsageError
from edgechat.records import FinishReason, Grammar, SamplingSettings
from edgechat.runtimes.base import Logits
from tests.edgechat.engine.drafts import Always, bench, half_agreeing, restless
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import END_OF_TEXT, IM_END, ScriptedRuntime, ToyTokenizer
from tests.oracles.speculation import chi_squared_p, count

TEXTS = ("Hello world", "Hello the answer", "Hell", "the user", "naïve", "")
LIST = Grammar("root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in TEXTS), "gbnf")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "kind": {"enum": ["cat", "dog", None]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}
JSON = Grammar(json.dumps(SCHEMA), "json_schema")


def form(grammar: Grammar, tokenizer: ToyTokenizer | None = None) -> Form:
    return Grammars(tokenizer or ToyTokenizer(), (IM_END, END_OF_TEXT)).form(grammar)


def allowed(one: Form, n_vocab: int) -> set[int]:
    row = np.zeros(n_vocab, dtype=np.float32)
    one.apply(row)
    assert set(row[np.isfinite(row)].tolist()) <= {0.0}
    return set(np.flatnonzero(np.isfinite(row)).tolist())


def test_allowed_is_what_begins_one_of_the_texts() -> None:
    """After each way to write each beginning; the end of the turn behind whole texts only."""
    tokenizer = ToyTokenizer()
    pieces = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]
    texts = [text.encode() for text in TEXTS]
    seen, todo = 0, [((), b"")]
    while todo:
        tokens, written = todo.pop()
        one = form(LIST)
        for token in tokens:
            one.accept(token)
        goes_on = {
            token
            for token, piece in enumerate(pieces)
            if piece and any(text.startswith(written + piece) for text in texts)
        }
        ends = {IM_END, END_OF_TEXT} if written in texts else set()
        assert allowed(one, tokenizer.n_vocab) == goes_on | ends, written
        todo += [((*tokens, token), written + pieces[token]) for token in goes_on]
        seen += 1
    assert seen > 50


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_drawn_is_json_as_the_schema_says(seed: int) -> None:
    dice = np.random.default_rng(seed)
    tokenizer = ToyTokenizer()
    one, written = form(JSON), b""
    for _ in range(2000):
        tokens = sorted(allowed(one, tokenizer.n_vocab))
        token = int(dice.choice(tokens))
        if token in (IM_END, END_OF_TEXT):
            break
        one.accept(token)
        written += tokenizer.piece(token)
    answer = json.loads(written)
    assert answer.keys() == {"name", "ages", "kind"}
    assert len(answer["name"]) <= 5
    assert len(answer["ages"]) <= 3
    assert all(type(age) is int and 0 <= age <= 99 for age in answer["ages"])
    assert answer["kind"] in ("cat", "dog", None)


def test_json_ends() -> None:
    """Line breaks between its parts don't come without end."""
    tokenizer = ToyTokenizer()
    one = form(JSON)
    one.accept(ord("{"))
    for _ in range(100):
        if not allowed(one, tokenizer.n_vocab) & set(b" \n\t"):
            return
        one.accept(next(token for token in b"\n \t" if token in allowed(one, tokenizer.n_vocab)))
    pytest.fail("white space without end")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("{", "json_schema"), "the JSON schema can't be used: "),
        (Grammar('{"type": "wat"}', "json_schema"), "the JSON schema can't be used: Invalid type: wat"),
        (Grammar('{"not": {}}', "json_schema"), "the JSON schema can't be used: Unimplemented keys"),
        (Grammar('{"type": "string", "pattern": "("}', "json_schema"), "unclosed group"),
        (Grammar("root ::= foo", "gbnf"), "the grammar can't be used: .*'foo' not found"),
        (Grammar('top ::= "a"', "gbnf"), "No 'root' rule"),
        (Grammar('root ::= "a', "gbnf"), "the grammar can't be used: "),
    ],
)
def test_what_makes_no_sense(grammar: Grammar, message: str) -> None:
    """In one line."""
    with pytest.raises(UsageError, match=message) as caught:
        form(grammar)
    assert "\n" not in str(caught.value)


def test_lark_is_a_grammar_too() -> None:
    assert allowed(form(Grammar('start: "b" | "c"', "gbnf")), ToyTokenizer().n_vocab) == {ord("b"), ord("c")}


def test_a_form_that_the_vocabulary_cannot_write() -> None:
    class Short(ToyTokenizer):
        def piece(self, token: int) -> bytes:
            return b"" if token == ord("z") else super().piece(token)

    one = form(Grammar('root ::= "az"', "gbnf"), Short())
    one.accept(ord("a"))
    with pytest.raises(DeadEnd):
        allowed(one, Short().n_vocab)
    with pytest.raises(DeadEnd):
        form(LIST).accept(ord("x"))


def test_a_model_without_an_end() -> None:
    with pytest.raises(UnsupportedError, match="no token that ends a text"):
        Grammars(ToyTokenizer(), ()).form(LIST)


# --- in the engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_is_one_of_the_texts(temperature: float) -> None:
    one = Bench()
    for id in range(1, 20):
        sampling = SamplingSettings(temperature=temperature, top_k=0, top_p=1, min_p=0, seed=id)
        assert one.ask(id, f"Question {id}", grammar=LIST, sampling=sampling, max_tokens=99) in TEXTS
        assert one.finished(id).reason is FinishReason.STOP


def test_two_answers_at_once_have_forms_of_their_own() -> None:
    one = Bench()
    one.submit(1, "a question", grammar=Grammar('root ::= "aaaa"', "gbnf"))
    one.submit(2, "a question", grammar=Grammar('root ::= "bbbb"', "gbnf"))
    one.submit(3, "a question")
    one.run()
    assert (one.text(1), one.text(2)) == ("aaaa", "bbbb")
    assert len(one.text(3)) > 4


def test_a_form_that_makes_no_sense_is_refused() -> None:
    one = Bench()
    one.submit(1, "a question", grammar=Grammar("root ::= foo", "gbnf"))
    assert one.refused(1).code == ExitCode.USAGE
    assert one.ask(2, "a question")


def test_an_answer_that_can_not_go_on_is_refused() -> None:
    class Short(ToyTokenizer):
        def piece(self, token: int) -> bytes:
            return b"" if token == ord("z") else super().piece(token)

    one = Bench(ScriptedRuntime(tokenizer=Short()))
    one.submit(1, "a question", grammar=Grammar('root ::= "az"', "gbnf"))
    one.run()
    assert one.refused(1).code == ExitCode.USAGE
    assert "no token can follow in the form" in one.refused(1).error
    assert one.ask(2, "a question")


def test_a_form_does_not_end_where_tokens_must_be_many() -> None:
    """Benchmarks go on past the end of the turn."""
    one = Bench()
    one.submit(1, "a question", grammar=Grammar('root ::= "ab"', "gbnf"), ignore_eog=True, max_tokens=9)
    one.run()
    assert len(one.finished(1).tokens) == 9


@pytest.mark.parametrize("proposer", [{"ngrams": True}, {"model": half_agreeing}, {"model": restless}])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_does_not_depend_on_drafts(proposer: dict[str, Any], temperature: float) -> None:
    """Drafts that the form forbids fall."""
    grammar = Grammar('root ::= ([a-f]{3} [0-9] " "){20}', "gbnf")
    sampling = SamplingSettings(temperature=temperature, top_k=4, seed=5)
    expected = bench(drafting=False).ask(1, "a b", grammar=grammar, max_tokens=200, sampling=sampling)
    one = bench(**proposer, decides=Always)
    seen = one.ask(1, "a b", grammar=grammar, max_tokens=200, sampling=sampling)
    speculation = one.finished(1).speculation
    assert speculation is not None
    assert speculation.drafted > 0
    assert seen == expected or (temperature and "model" in proposer)  # drawn drafts take other random numbers
    assert len(seen) == 100


def test_drawn_drafts_leave_the_distribution_as_it_is() -> None:
    """Two letters of three, whose probabilities are the masked softmax of the target's logits."""

    def logits(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = np.full(n_vocab, 2.0, dtype=np.float32)
        row[ord("a") : ord("d")] = {ord("a"): (0, 1, 2), ord("b"): (1, 1, 0)}.get(tokens[-1], (0.5, 0, 1))
        return row

    def drafts(tokens: Sequence[int], n_vocab: int) -> Logits:
        row = np.full(n_vocab, -9.0, dtype=np.float32)
        row[ord("a") : ord("e")] = (1, 0, 1, 1)  # "d" is forbidden
        return row

    def softmax(last: int) -> dict[int, float]:
        row = np.exp(logits([last], 272)[ord("a") : ord("d")].astype(np.float64))
        return dict(zip(b"abc", (row / row.sum()).tolist(), strict=True))

    expected = {(x, y): softmax(0)[x] * softmax(x)[y] for x, y in itertools.product(b"abc", repeat=2)}
    one = bench(model=drafts, logits=logits, decides=Always)
    seen = []
    for seed in range(1200):
        sampling = SamplingSettings(temperature=1, top_k=0, top_p=1, min_p=0, seed=seed)
        one.submit(1, "q", grammar=Grammar("root ::= [abc]{2}", "gbnf"), sampling=sampling)
        one.run()
        seen.append(tuple(one.finished(1).tokens[:2]))
        one.events.clear()
    assert chi_squared_p(count(seen), expected) > 0.01


# --- llama.cpp


@pytest.mark.parametrize(
    "text", ["", "{", '{"na', '{"name": "Jo', '{"name": "Joe", ', '{"a": [1, 2', '{"a": []}']
)
def test_llama_cpp_allows_the_same(text: str, starter_gguf: Path) -> None:
    """The grammar of JSON objects that comes with llama.cpp, on the starter's vocabulary."""
    import ctypes

    import llama_cpp as c

    from tests.oracles.llama_reference import loaded

    source = r"""root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
    with loaded(starter_gguf, 64) as reference:
        chain = c.llama_sampler_init_grammar(reference.vocab, source.encode(), b"root")
        tokens = reference.tokenize(text, parse_special=False) if text else []
        for token in tokens:
            c.llama_sampler_accept(chain, token)
        n = reference.n_vocab
        rows = np.zeros(n, np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")]))
        rows["id"] = np.arange(n)
        pointer = rows.ctypes.data_as(ctypes.POINTER(c.llama_token_data))
        c.llama_sampler_apply(chain, ctypes.byref(c.llama_token_data_array(pointer, n, -1, False)))
        c.llama_sampler_free(chain)
        finite = np.flatnonzero(np.isfinite(rows["logit"])).tolist()

        class Vocabulary(ToyTokenizer):
            def piece(self, token: int) -> bytes:
                return pieces[token]

            def name(self, token: int) -> str:
                return f"<{token}>"

        pieces = [_piece(reference, token) for token in range(n)]
        tokenizer = Vocabulary()
        tokenizer.n_vocab = n
        eog = [token for token in range(n) if reference.is_eog(token)]
        one = Grammars(tokenizer, eog).form(Grammar(source, "gbnf"))
        for token in tokens:
            one.accept(token)
        # llama.cpp takes the names of control tokens for text; ours are never text.
        assert allowed(one, n) == {token for token in finite if pieces[token] or token in eog}


def _piece(reference: Any, token: int) -> bytes:
    import ctypes

    import llama_cpp as c

    buffer = ctypes.create_string_buffer(256)
    n = c.llama_token_to_piece(reference.vocab, token, buffer, 256, 0, False)
    assert n >= 0
    return buffer.raw[:n]
