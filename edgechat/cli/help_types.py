"""What an option takes, as its help page says it: Typer's own words are Python's."""

from functools import partial
from typing import Any

WORDS = {"int": "N", "int range": "N", "float": "X", "float range": "X", "str": "TEXT", "list[str]": "TEXT"}


def in_words(command: Any) -> None:
    """Have a command, or a group with all that is in it, say N instead of <int range>.

    Args:
        command: Typer's.
    """
    for parameter in command.params:
        typers_own = parameter.display_type_rich
        is_option = any(one.startswith("-") for one in parameter.opts)
        parameter.display_type_rich = partial(_shown, typers_own, is_option)
        if not is_option:
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.get_usage_pieces = partial(_without_braces, parameter.get_usage_pieces)
    for verb in getattr(command, "commands", {}).values():
        in_words(verb)


def _without_braces(typers_own: Any, ctx: Any) -> list[str]:
    """What is required, as every manual page writes it."""
    return [piece.replace("{", "").replace("}", "") for piece in typers_own(ctx)]


def _shown(typers_own: Any, is_option: bool, ctx: Any) -> str:
    """Nothing for an argument: its own name says it."""
    if not is_option:
        return ""
    shown = str(typers_own(ctx=ctx)).removeprefix("<").removesuffix(">")
    return WORDS.get(shown, shown)
