"""What is wrong with a command line, in words: Typer's own are those of the libraries below it."""

import re
from collections.abc import Sequence
from typing import Any

from typer.exceptions import TyperException

_NOT_ONE_OF = re.compile(r"(?:Value error, )?(?P<given>'.*') is not one of (?P<known>'.*')\.?")
_FIRST = {"--offline": "models ls", "--version": ""}
_WHOLE = ("valid integer", "valid int")
_NUMBER = (*_WHOLE, "valid number", "less than or equal", "greater than or equal", "finite number")


def told(error: TyperException, arguments: Sequence[str] = ()) -> str:
    """What is wrong, and what to type to learn more.

    Args:
        error: Typer's.
        arguments: the command line.
    """
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else _command(arguments)
    return f"{_in_words(error)}; see: {command} --help"


def help_page(error: TyperException) -> str:
    """The page that is shown where a command lacks its verb; "" for another error."""
    return str(getattr(error, "message", "")) if type(error).__name__ == "NoArgsIsHelpError" else ""


def _in_words(error: TyperException) -> str:
    parameter: Any = getattr(error, "param", None)
    message = error.format_message().rstrip(".")
    if parameter is not None:
        return _of_parameter(error, parameter) or message
    if help_page(error):
        return "a command is missing"
    if found := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return f"{found[1]!r} is too much, no more words belong here"
    if found := re.fullmatch(r"Option '(.*)' requires an argument", message):
        return f"{found[1]} lacks its value"
    return _of_option(error) or message


def _of_option(error: TyperException) -> str:
    """What is wrong with an option that the command doesn't have; "" where that can't be said better."""
    option, close = getattr(error, "option_name", ""), getattr(error, "possibilities", None)
    if type(error).__name__ == "NoSuchOption" and option in _FIRST:
        return f"{option} stands before the command, as in: edgechat {option} {_FIRST[option]}".rstrip()
    return f"No such option: {option}, did you mean {' or '.join(close)}" if close else ""


def _of_parameter(error: TyperException, parameter: Any) -> str:
    """What is wrong with the value of an option or an argument; "" where that can't be said better."""
    name, reason = _name(parameter), str(getattr(error, "message", ""))
    if type(error).__name__ == "MissingParameter":
        return f"{name} is missing"
    if found := _NOT_ONE_OF.fullmatch(reason):
        *all_but_last, last = re.findall(r"'([^']*)'", found["known"])
        return f"{name} {found['given']}: give {' or '.join(filter(None, (', '.join(all_but_last), last)))}"
    if any(part in reason for part in _NUMBER):
        return f"{name}: give {_number(parameter, reason)}"
    return ""


def _name(parameter: Any) -> str:
    """As it is typed."""
    options = [one for one in parameter.opts if one.startswith("-")]
    if options:
        return str(max(options, key=len))
    return str(parameter.metavar or parameter.name).strip("[]").upper()


def _number(parameter: Any, reason: str) -> str:
    """What number belongs there."""
    whole = _is_whole(parameter) or any(part in reason for part in _WHOLE)
    kind = "a whole number" if whole else "a number"
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    return f"{kind} of at least {low}" if low is not None else kind


def _is_whole(parameter: Any) -> bool:
    descriptor = getattr(parameter, "type_descriptor", None)
    return "int" in str(getattr(descriptor, "annotation", ""))


def _command(arguments: Sequence[str]) -> str:
    """The command that a line begins with, with its verb."""
    words = []
    for word in arguments[:2]:
        if not re.fullmatch(r"[a-z]+", word):
            break
        words.append(word)
    return " ".join(("edgechat", *(words if words[:1] == ["models"] else words[:1])))
