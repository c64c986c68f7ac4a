"""`edgechat ask` with the starter model: the whole way, once."""

import json

import pytest

from edgechat.cli.app import main

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _no_pipe(monkeypatch):
    monkeypatch.setattr("edgechat.cli.ask._is_piped", lambda: False)


def ask(*arguments):
    return main(["ask", *arguments, "--temperature", "0", "--threads", "1"])


def test_it_knows_the_capital_of_france(capfd):
    assert ask("The capital of France is", "--raw", "--max-tokens", "2") == 0
    assert capfd.readouterr().out == " Paris.\n"


def test_it_answers_in_its_chat_format(capfd):
    assert ask("Which country has Paris as its capital?", "--max-tokens", "7", "--json", "--ctx", "512") == 0
    result = json.loads(capfd.readouterr().out)
    assert "Paris" in result["text"]
    assert len(result["tokens"]) == 7
    assert result["finish_reason"] == "length"
    assert result["timings"]["decode_tokens"] == 7
    assert result["timings"]["prefill_tokens"] == 38
    assert result["timings"]["tokens_per_s"] > 0
    assert "<|im_" not in result["text"]


def test_a_seed_repeats_the_answer(capfd):
    texts = set()
    for _ in range(2):
        assert (
            main(["ask", "Tell me a story", "--seed", "7", "--max-tokens", "5", "--threads", "1", "-t", "2"])
            == 0
        )
        texts.add(capfd.readouterr().out)
    assert len(texts) == 1


def test_a_damaged_file_never_reaches_native_code(tmp_path, capfd, starter_gguf):
    damaged = tmp_path / "damaged.gguf"
    with starter_gguf.open("rb") as file:
        damaged.write_bytes(file.read(100_000))
    assert ask(str(damaged), "hi") == 4
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"edgechat: {damaged} ")
    assert err.count("\n") == 1


def test_an_answer_is_json_as_a_schema_says(capfd, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(
        """{"type": "object", "additionalProperties": false, "required": ["city", "people"],
        "properties": {"city": {"type": "string"}, "people": {"type": "integer", "maximum": 9}}}"""
    )
    texts = set()
    for drafts in ("ngram", "off"):  # greedy: drafts change nothing
        assert (
            ask("Tell me of Paris, in JSON.", "--json-schema", str(schema), "--draft", drafts, "--quiet") == 0
        )
        texts.add(capfd.readouterr().out)
    (text,) = texts
    answer = json.loads(text)
    assert answer.keys() == {"city", "people"}
    assert isinstance(answer["city"], str)
    assert isinstance(answer["people"], int)
    assert answer["people"] <= 9


def test_an_answer_is_what_a_grammar_says(capfd, tmp_path):
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= " Berlin" | " Paris"')
    assert ask("The capital of France is", "--raw", "--grammar", str(grammar), "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["text"], result["finish_reason"]) == (" Paris", "stop")
    grammar.write_text("root ::= city")
    assert ask("Which city is the capital of France?", "--grammar", str(grammar)) == 2
    assert capfd.readouterr() == ("", "edgechat: the grammar can't be used: Rule 'city' not found\n")
