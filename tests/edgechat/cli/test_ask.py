import io
import json
import os
import re
from pathlib import Path

import msgspec
import pytest

from edgechat import paths
from edgechat.cli.app import main

pytestmark = pytest.mark.usefixtures("scripted_engine")


@pytest.fixture
def starter(model, monkeypatch):
    """The scripted model is the starter too."""
    monkeypatch.setattr("edgechat.library.starter.find_starter", lambda: Path(model))


@pytest.fixture(autouse=True)
def _no_stdin(monkeypatch):
    """What is inherited, and brings nothing."""
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        monkeypatch.setattr("edgechat.cli.ask._is_piped", lambda: False)
        yield


@pytest.fixture
def piped(monkeypatch):
    """Puts bytes into standard input."""

    def pipe(data):
        monkeypatch.setattr("edgechat.cli.ask._is_piped", lambda: True)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return pipe


def test_the_answer_is_on_stdout_and_nothing_else_anywhere(model, capfd):
    assert main(["ask", model, "print NATIVE;say Grüße", "-t", "0"]) == 0
    out, err = capfd.readouterr()
    assert out == "Grüße\n"
    assert re.fullmatch(r"\[model: 7 tokens, .* tokens/s, .* loaded in .* s\]\n", err)  # in a file as well
    assert main(["ask", model, "say Grüße", "-t", "0", "--quiet"]) == 0
    assert capfd.readouterr() == ("Grüße\n", "")


def test_an_answer_that_ends_its_line_gets_no_other(model, capfd):
    assert main(["ask", model, "say line\n", "-t", "0"]) == 0
    assert capfd.readouterr().out == "line\n"


def test_json_is_one_object(model, capfd):
    assert main(["ask", model, "say hello", "-t", "0", "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result.keys() == {
        "text",
        "tokens",
        "finish_reason",
        "timings",
        "model",
        "notes",
        "window",
        "speculation",
        "title",
        "error",
    }
    assert (result["title"], result["error"]) == ("scripted", None)
    assert result["text"] == "hello"
    assert bytes(result["tokens"]) == b"hello"
    assert result["finish_reason"] == "stop"
    assert result["model"] == "model"
    assert result["notes"] == []
    times = result["timings"]
    assert times.keys() >= {
        "load_s", "ttft_s", "prefill_tokens", "prefill_s", "decode_tokens", "decode_s", "tokens_per_s",
    }  # fmt: skip
    assert times["load_s"] > 0
    # <|user|> say hello <|end|> <|assistant|>
    assert times["prefill_tokens"] == 1 + len("say hello") + 2


def test_json_claims_no_gain_where_nothing_was_drafted():
    """Plain steps that took a little more or less than expected are none."""
    from edgechat.cli.asking import Drafts
    from edgechat.records import Speculation

    said = Speculation(9, 9, 0, 0, 1.0, speedup=1.7, predicted=1.6, reason="no words repeat here")
    assert msgspec.to_builtins(Drafts.of(said)) == {
        **msgspec.to_builtins(said), "speedup": None, "predicted": None
    }  # fmt: skip
    said = msgspec.structs.replace(said, drafted=4, accepted=3)
    assert msgspec.to_builtins(Drafts.of(said)) == msgspec.to_builtins(said)


def test_a_limit_ends_it(model, capfd):
    assert main(["ask", model, "count 99", "-t", "0", "--max-tokens", "4", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["text"] == "0 1 "
    assert result["finish_reason"] == "length"


def test_a_limit_in_the_middle_of_a_character_ends_before_it(model, capfd):
    asked = ["ask", model, "say Grüße", "-t", "0", "--max-tokens", "3"]
    assert main(asked) == 0
    assert capfd.readouterr().out == "Gr\n"
    assert main([*asked, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["text"], bytes(result["tokens"])) == ("Gr", "Grü".encode()[:3])


def test_a_stop_string_ends_it(model, capfd):
    assert main(["ask", model, "count 99", "-t", "0", "--stop", "3", "--stop", "x"]) == 0
    assert capfd.readouterr().out == "0 1 2 \n"


def test_settings_of_the_file_hold_where_the_command_line_says_nothing(model, capfd):
    paths.config_file().write_text("[sampling]\nmax_tokens = 2\ntemperature = 0\n")
    assert main(["ask", model, "count 9"]) == 0
    assert main(["ask", model, "count 9", "--max-tokens", "3"]) == 0
    assert capfd.readouterr().out == "0 \n0 1\n"


def test_the_file_may_name_the_model(model, capfd):
    paths.config_file().write_text(f"[chat]\nmodel = '{model}'\n")
    assert main(["ask", "say hi", "-t", "0"]) == 0
    assert capfd.readouterr().out == "hi\n"


def test_a_system_prompt_comes_first_and_raw_text_stays_as_it_is(model, capfd):
    assert main(["ask", model, "say a", "--system", "Be brief.", "-t", "0", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["timings"]["prefill_tokens"] == (9 + 2) + (5 + 2) + 1
    assert main(["ask", model, "say raw=>", "--raw", "-t", "0", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["text"] == "raw"
    assert result["timings"]["prefill_tokens"] == len("say raw=>")


def test_an_empty_system_prompt_is_a_message_too(model, capfd):
    """Templates write one of their own where there is none."""
    assert main(["ask", model, "say a", "-t", "0", "--json"]) == 0
    without = json.loads(capfd.readouterr().out)["timings"]["prefill_tokens"]
    assert main(["ask", model, "say a", "--system", "", "-t", "0", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["timings"]["prefill_tokens"] == without + 2  # its two marks
    assert main(["ask", model, "say raw=>", "--raw", "--system", ""]) == 2
    assert "--raw takes no --system" in capfd.readouterr().err


def test_one_word_is_the_prompt_and_the_starter_answers(capfd, starter):
    assert main(["ask", "say hi", "-t", "0"]) == 0
    assert capfd.readouterr().out == "hi\n"


@pytest.mark.parametrize("words", [["-"], []])
def test_a_pipe_is_the_prompt(words, piped, capfd, starter):
    piped("say ü from a pipe".encode())
    assert main(["ask", *words, "-t", "0"]) == 0
    assert capfd.readouterr().out == "ü from a pipe\n"


def test_a_prompt_and_a_pipe_are_both_the_prompt(piped, model, capfd):
    piped(b"piped text\n")
    assert main(["ask", model, "say Look:", "-t", "0"]) == 0
    assert capfd.readouterr().out == "Look:\n\npiped text\n"


def test_an_empty_pipe_adds_nothing(piped, model, capfd):
    piped(b"\n")
    assert main(["ask", model, "say Look:", "-t", "0"]) == 0
    assert capfd.readouterr().out == "Look:\n"


def test_a_pipe_of_another_encoding_does_not_hurt(piped, model, capfd):
    piped(b"\xff\xfe")
    assert main(["ask", model, "say it:", "-t", "0"]) == 0
    assert "�" in capfd.readouterr().out


@pytest.mark.parametrize("arguments", [["say it:"], ["-"]])
def test_a_pipe_of_binary_data_is_refused(piped, model, capfd, arguments):
    piped("UTF-16, say".encode("utf-16-le"))
    assert main(["ask", model, *arguments]) == 2
    message = "edgechat: standard input is no text (byte 2 is 0): convert it to UTF-8 first\n"
    assert capfd.readouterr() == ("", message)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["one", "two", "three"], 2, "3 words: put the prompt in quotes"),
        (["--raw", "--system", "x", "prompt"], 2, "--raw takes no --system"),
        (["  "], 2, "the prompt is empty"),
        (["-"], 2, "the prompt is empty"),
        (["--temperature", "-1", "x"], 2, "--temperature"),
        (["--top-p", "2", "x"], 2, "--top-p"),
        (["--ctx", "99999999999", "x"], 2, "--ctx"),
        (["--seed", str(2**64), "x"], 2, "seed of 18446744073709551616"),
        (["./absent.gguf", "x"], 3, "absent.gguf"),
        (["x" * 100, "--ctx", "64"], 2, "in the context of 64 there is room"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, code, says, capfd, starter):
    assert main(["ask", *arguments]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("edgechat: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_prompt_is_asked_for_on_a_terminal(monkeypatch, capfd):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("edgechat.cli.ask.sys.stdin", type("Tty", (), {"isatty": lambda self: True})())
    assert main(["ask"]) == 2
    assert "no prompt, as in: edgechat ask" in capfd.readouterr().err


def test_a_broken_setting_is_one_line(model, capfd):
    paths.config_file().write_text("[engine]\nctx = 'x'\n")
    assert main(["ask", model, "hi"]) == 2
    assert "config.toml, line 2: engine.ctx: give a whole number" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("refuse", 5, "needs 12 GB and 3 GB are free"),
        ("die SIGABRT", 8, "crashed (SIGABRT) while it loaded the model: "),
        ("bug", 1, "ZeroDivisionError"),
    ],
)
def test_a_model_that_does_not_load(name, code, says, tmp_path, capfd):
    (tmp_path / name).write_bytes(b"")
    assert main(["ask", str(tmp_path / name), "hi"]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_an_engine_that_dies_leaves_what_was_printed_and_one_line(model, capfd):
    assert main(["ask", model, "slow 0.1;die SIGKILL at 12;count 99", "-t", "0"]) == 8
    out, err = capfd.readouterr()
    assert out.endswith("\n")
    assert "0 1 2 3 4 5 ".startswith(out.removesuffix("\n"))
    assert len(out) > 1
    assert err == (
        "edgechat: the engine was killed (SIGKILL): try again; if memory is short, "
        "choose a smaller model or a smaller --ctx, or close other programs\n"
    )


def test_a_base_models_note_is_on_stderr_and_in_json(tmp_path, capfd):
    base = tmp_path / "base.gguf"
    base.write_bytes(b"")
    short = ["-t", "0", "--max-tokens", "2"]
    assert main(["ask", str(base), "hi", *short]) == 0
    out, err = capfd.readouterr()
    assert out
    assert out == "hh\n"  # as what it continues begins: with the prompt, and not with a transcript's "User"
    assert err.count("base model") == 1
    assert "continues your text as it is" in err
    assert main(["ask", str(base), "hi", "--system", "be kind", *short]) == 0
    out, err = capfd.readouterr()
    assert "continues a transcript" in err
    assert main(["ask", str(base), "hi", "--system", "", *short]) == 0
    out, err = capfd.readouterr()
    assert out == "hh\n"
    assert "continues your text as it is" in err
    assert main(["ask", str(base), "hi", *short, "--quiet"]) == 0
    assert capfd.readouterr().err == ""
    assert main(["ask", str(base), "hi", *short, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "base model" in json.loads(out)["notes"][0]
    assert main(["ask", str(base), "say hi=>", "--raw", *short]) == 0
    out, err = capfd.readouterr()
    assert out == "hi\n"
    assert "base model" not in err


def test_a_prompt_longer_than_the_context(model, capfd):
    long = "say " + "x" * 400
    assert main(["ask", model, long, "--ctx", "256"]) == 2
    error = capfd.readouterr().err
    assert "too long" in error
    assert "--overflow window" in error
    arguments = ["ask", model, long, "-t", "0", "--ctx", "256", "--overflow", "window", "--max-tokens", "8"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["window"]["messages"] == []
    assert result["window"]["cut"] == [0]
    assert result["window"]["lost_tokens"] > 100
    assert "middle of your message" in result["notes"][0]


def test_an_answer_longer_than_the_context(model, capfd):
    assert main(["ask", model, "count 200", "-t", "0", "--ctx", "256", "--max-tokens", "400", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert len(result["tokens"]) == 400
    assert result["window"]["cut"] == [1]
    assert result["window"]["context_tokens"] <= 256


def test_a_raw_prompt_is_not_summed_up(model, capfd):
    assert main(["ask", model, "x", "--raw", "--summarize"]) == 2
    assert "--raw takes no --summarize" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("setting", "option", "expected"),
    [("true", (), True), ("true", ("--no-summarize",), False), ("false", ("--summarize",), True)],
)
def test_the_setting_sums_up_too(model, monkeypatch, setting, option, expected):
    asked = []
    monkeypatch.setattr("edgechat.cli.asking.run", lambda asking, host: asked.append(asking) or 0)
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(f"[engine]\nsummarize = {setting}\n")
    assert main(["ask", model, "x", *option]) == 0
    assert [asking.request().summarize for asking in asked] == [expected]
    assert asked[0].load.n_sequences == (2 if expected else 1)


def test_json_tells_of_an_error_too(model, tmp_path, capfd):
    for words, code, says in (
        (["ask", "nosuch", "hi"], 3, "no model named 'nosuch'"),
        (["ask", model, "x" * 400, "--ctx", "256"], 2, "too long"),
        (["ask", "a", "b", "c"], 2, "put the prompt in quotes"),
    ):
        assert main([*words, "--json"]) == code
        out, err = capfd.readouterr()
        result = json.loads(out)
        assert result["error"]["code"] == code
        assert says in result["error"]["message"]
        assert err == f"edgechat: {result['error']['message']}\n"


def test_json_has_what_there_was_when_the_engine_died(model, capfd):
    assert main(["ask", model, "slow 0.1;die SIGKILL at 12;count 99", "-t", "0", "--json"]) == 8
    result = json.loads(capfd.readouterr().out)
    assert result["text"].startswith("0 1 ")
    assert result["model"] == "model"
    assert result["error"]["code"] == 8
    assert "was killed (SIGKILL)" in result["error"]["message"]


def test_two_words_that_name_no_model_may_be_the_prompt(capfd):
    assert main(["ask", "hello", "world"]) == 3
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "if both words are the prompt, put it in quotes, as in: edgechat ask 'hello world'" in err
    assert main(["ask", "./hello.gguf", "world"]) == 3
    assert "quotes" not in capfd.readouterr().err


def test_what_no_context_could_hold_is_refused_before_it_is_tokenized(model, piped, capfd):
    piped(b"a" * 1_000_000)
    assert main(["ask", model, "-"]) == 2
    err = capfd.readouterr().err
    # The scripted vocabulary's longest token is the mark of 13 bytes: 76,924 tokens at least.
    assert err == (
        "edgechat: the prompt of 1,000,000 bytes is far too long: it has 76,924 tokens at least, and the "
        "context holds 8,192: give a part of it, or have its middle cut (--overflow window)\n"
    )


def test_a_form_that_can_not_be_read(model, capfd, tmp_path):
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"title": "caf\xe9"}')
    empty = tmp_path / "empty.gbnf"
    empty.write_text(" \n")
    cases = [
        (["--json-schema", str(tmp_path / "none")], 3, f"{tmp_path / 'none'}: there is no such file"),
        (["--json-schema", str(tmp_path)], 3, f"{tmp_path} can't be read: Is a directory"),
        (["--json-schema", str(latin)], 2, f"{latin} is not a UTF-8 text (byte 14): convert it first"),
        (["--grammar", str(empty)], 2, f"{empty} is empty: there is nothing in it"),
        (["--grammar", "-"], 2, "the form of an answer is read from a file: standard input is the prompt's"),
        (
            ["--grammar", str(empty), "--json-schema", str(latin)],
            2,
            "--json-schema and --grammar: an answer has one form, give one of them",
        ),
    ]
    for options, code, message in cases:
        assert main(["ask", model, "say hello", *options]) == code
        assert capfd.readouterr() == ("", f"edgechat: {message}\n")
        assert main(["ask", model, "say hello", *options, "--json"]) == code
        assert json.loads(capfd.readouterr().out)["error"] == {"code": code, "message": message}
