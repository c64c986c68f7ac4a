"""What a person meant who typed no command: told, with what to type instead."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence

HABITS = {
    "run": "chat",
    "talk": "chat",
    "list": "models ls",
    "pull": "models pull",
    "ls": "models ls",
    "rm": "models rm",
    "show": "models show",
    "search": "models search",
    "link": "models link",
    "du": "models du",
    "plan": "models plan",
    "verify": "models verify",
    "convert": "quantize",
    "help": "--help",
    "version": "--version",
}
"""Words of other programs, and of ours one level down."""
LONGEST = 100


def instead_of_word(word: str, rest: Sequence[str]) -> str:
    """What was meant by a word in a command's place; "" where that can't be told.

    Args:
        word: in the command's place.
        rest: what follows it.
    """
    if word.casefold() in HABITS:
        return f"there is no command {word!r}: type {_typed(HABITS[word.casefold()], *rest)}"
    if _is_question(word, rest):
        return f"a question needs a command before it: {_typed('ask', ' '.join((word, *rest)))}"
    if _is_model(word):
        return f"a model needs a command before it: {_typed('chat', word, *rest)}"
    return ""


def instead_of_option(option: str, arguments: Sequence[str], commands: Iterable[tuple[str, set[str]]]) -> str:
    """What was meant by an option before any command; "" where no command has it.

    Args:
        option: that is unknown there.
        arguments: all of the command line.
        commands: each command's name, and its options.
    """
    having = [name for name, options in commands if option in options]
    if not having:
        return ""
    named = next((word for word in arguments if word in having), having[0])
    rest = list(arguments)
    if named in rest:
        rest.remove(named)
    return f"{option} is an option of a command: type {_typed(named, *rest)}"


def _typed(command: str, *words: str) -> str:
    line = f"edgechat {command} {shlex.join(words)}".rstrip()
    return line if len(line) <= LONGEST else f"edgechat {command} ..."


def _is_question(word: str, rest: Sequence[str]) -> bool:
    words = " ".join((word, *rest))
    looks_like_one = bool(re.search(r"\s", word.strip())) or words.rstrip().endswith(("?", "!"))
    return looks_like_one and not os.path.exists(os.path.expanduser(word))


def _is_model(word: str) -> bool:
    """Whether it names a file, a folder or a model that is here."""
    from edgechat.errors import EdgechatError
    from edgechat.library.resolve import resolve

    if word.endswith(".gguf") or "/" in word or os.path.exists(os.path.expanduser(word)):
        return True
    try:
        resolve(word)
    except (EdgechatError, OSError, ValueError):
        return False
    return True
