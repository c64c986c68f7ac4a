"""Colours of code: few, and the same on a dark and a light ground."""

from pygments.token import Token  # type: ignore[import-untyped]
from textual.content import Content
from textual.highlight import HighlightTheme, highlight

LONGEST_HIGHLIGHTED = 20_000
"""Longer code is shown in one colour: a growing answer is highlighted again with each piece."""


class CalmTheme(HighlightTheme):
    """Keywords, strings, numbers and comments; all else is text."""

    STYLES = {  # noqa: RUF012 - as the base declares it
        Token.Comment: "$foreground 62% italic",
        Token.Keyword: "$text-primary",
        Token.Keyword.Constant: "$text-warning",
        Token.Operator.Word: "$text-primary",
        Token.Literal.Number: "$text-warning",
        Token.Literal.String: "$text-success",
        Token.Name.Class: "bold",
        Token.Name.Function: "bold",
        Token.Name.Decorator: "$text-secondary",
        Token.Name.Tag: "$text-primary",
        Token.Name.Attribute: "$text-secondary",
        Token.Generic.Deleted: "$text-error",
        Token.Generic.Inserted: "$text-success",
        Token.Generic.Heading: "bold",
    }


def highlighted(code: str, info: str) -> Content:
    """Code in the language that a fence names; plain where it names none.

    Args:
        code: the code.
        info: what follows the fence's back-ticks, such as "python".
    """
    language = language_of(info)
    if len(code) > LONGEST_HIGHLIGHTED or not language:
        return Content(code)
    coloured = highlight(code, language=language, theme=CalmTheme)
    # Textual puts its own text colour under all of it, brighter than the text around the code.
    return Content(coloured.plain, [span for span in coloured.spans if span.style != "$text"])


def language_of(info: str) -> str:
    """The language's name in a fence's first line."""
    words = info.split()
    return words[0].strip("{}.").lower() if words else ""
