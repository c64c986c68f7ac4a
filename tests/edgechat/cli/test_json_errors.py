"""Whatever goes wrong: where `--json` was asked for, stdout is one JSON object that says so."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgechat import paths
from edgechat.cli.app import COMMANDS, load_command, main

Captured = pytest.CaptureFixture[str]
WITHOUT = {("chat",)}
"""A terminal app has nothing to print."""


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, and every verb."""
    for one in COMMANDS:
        command = load_command(one.name)
        verbs = getattr(command, "commands", None)
        if verbs is None:
            yield (one.name,), command
        else:
            yield from (((one.name, name), verb) for name, verb in verbs.items())


ALL = [name for name, _ in commands() if name not in WITHOUT]
MISSING = {
    ("ask",): ["no-such-model", "hello"],
    ("models", "show"): ["no-such-model"],
    ("models", "verify"): ["no-such-model"],
    ("models", "plan"): ["no-such-model"],
    ("models", "rm"): ["no-such-model", "--yes"],
    ("models", "link"): ["/no/such/file.gguf"],
    ("models", "pull"): ["/no/such/file.gguf"],
    ("quantize",): ["/no/such/checkpoint"],
    ("eval",): ["no-such-model"],
    ("bench",): ["no-such-model"],
}


def failure(capsys: Captured) -> dict[str, Any]:
    """What stdout says of the error; stderr says the same to a person, in one line."""
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    error = json.loads(captured.out)["error"]
    assert error["message"]
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"edgechat: {error['message']}")
    return error


def test_every_command_has_the_option() -> None:
    for name, command in commands():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) is (name not in WITHOUT), name


@pytest.mark.parametrize("name", ALL, ids=" ".join)
def test_wrong_usage(name: tuple[str, ...], capsys: Captured) -> None:
    assert main([*name, "--json", "--no-such-option"]) == 2
    assert failure(capsys) == {
        "code": 2,
        "message": f"No such option: --no-such-option; see: edgechat {' '.join(name)} --help",
    }


@pytest.mark.parametrize("name", ALL, ids=" ".join)
def test_broken_settings(name: tuple[str, ...], capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most commands need them; those that don't, do their work."""
    paths.config_file().write_text("[engine]\nctx = 'big'\n")
    monkeypatch.setattr("edgechat.cli.ask._is_piped", lambda: False)
    words = {("ask",): ["hello"], ("models", "search"): ["qwen"], ("bench",): ["starter"]}
    arguments = words.get(name, MISSING.get(name, []))
    code = main([*name, *arguments, "--json"])
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    if code == 2:
        said = f"{paths.config_file()}, line 2: engine.ctx: give a whole number, not a text in quotes"
        assert result["error"] == {"code": 2, "message": said}
        assert captured.err == f"edgechat: {said}\n"
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("name", MISSING, ids=" ".join)
def test_what_is_not_there(name: tuple[str, ...], capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgechat.cli.ask._is_piped", lambda: False)
    assert main([*name, *MISSING[name], "--json"]) == 3
    assert failure(capsys)["code"] == 3


def test_no_network(capsys: Captured) -> None:
    assert main(["--offline", "models", "pull", "owner/repository", "--json"]) == 7
    assert failure(capsys)["code"] == 7


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by zero"), 1, "a bug of edgechat: ZeroDivisionError: by zero. "),
    ],
)
def test_an_interrupt_and_a_bug(
    error: BaseException, code: int, message: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("edgechat.library.usage_of_disk.disk_use", fail)
    assert main(["models", "du", "--json"]) == code
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["code"] == code
    assert told["message"].startswith(message)


def test_a_word_behind_the_end_of_options_is_no_option(capsys: Captured) -> None:
    assert main(["models", "show", "--", "--json"]) == 3
    assert capsys.readouterr().out == ""


def test_ask_tells_errors_in_its_result_once_its_options_are_understood(capsys: Captured) -> None:
    """As docs/cli.md has it."""
    from edgechat.cli.asking import Result

    assert main(["ask", "--json", "no-such-model", "hello"]) == 3
    assert set(json.loads(capsys.readouterr().out)) == set(Result.__struct_fields__)
    assert main(["ask", "--json", "--no-such-option", "hello"]) == 2
    assert set(json.loads(capsys.readouterr().out)) == {"error"}
