"""Making text harmless: what a model or a file says is shown, and never acts on the terminal."""

_LINE_BREAKS = {ord("\r"): None, 0x2028: "\n", 0x2029: "\n"}
_C0 = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n\r"}
_DELETE = {0x7F: "\u2421"}
_C1 = dict.fromkeys(range(0x80, 0xA0), "\ufffd")
# Marks that show a text in another order than it is in.
_OVERRIDES = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_TABLE = _LINE_BREAKS | _C0 | _DELETE | _C1 | _OVERRIDES | _SURROGATES


def printable(text: str) -> str:
    """A text with a visible sign in place of every control character; line breaks and tabs stay.

    It works character by character, so that a text in pieces becomes the same as the whole.
    """
    return text.translate(_TABLE)


def one_line(text: str) -> str:
    """A text as `printable` has it, on one line."""
    return " ".join(printable(text).split())
