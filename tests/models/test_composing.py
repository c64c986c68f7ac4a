"""Composing characters, as `tokenizers` does it."""

import random
import unicodedata

import pytest

from models.composing import composed

LETTERS = "AaEeGgIiOoUu\u0391\u0627\u0915\u05d0\u1100\u1161\u11a8\U000105d2\U00011382\U00011935\U00016d63"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("e\u0301", "\u00e9"),
        ("a\u0323\u0302", "\u1ead"),
        ("a\u0302\u0323", "\u1ead"),
        ("\u1100\u1161\u11a8", "\uac01"),
        ("\u2126", "\u03a9"),
        ("\u07fd\u05b1", "\u07fd\u05b1"),  # a mark of Unicode 11: nothing moves past it
        ("e\u08d2\u0301", "e\u08d2\u0301"),
        ("e\u0301\u08d2e\u0301", "\u00e9\u08d2\u00e9"),
        ("\U00011935\U00011930", "\U00011935\U00011930"),  # they combine since Unicode 13
    ],
)
def test_composed(text: str, expected: str) -> None:
    """Canonical composition, which stops at what Unicode 9 didn't know."""
    assert composed(text) == expected


@pytest.mark.oracle
def test_tokenizers_composes_the_same() -> None:
    """Marks of all ages in any order, whatever Unicode this Python knows."""
    from tokenizers import normalizers

    reference = normalizers.NFC()
    dice = random.Random(12)
    marks = [chr(i) for i in range(0x110000) if unicodedata.combining(chr(i))]
    for _ in range(20_000):
        text = "".join(dice.choice(dice.choice((marks, LETTERS))) for _ in range(dice.randrange(1, 8)))
        assert composed(text) == reference.normalize_str(text), ascii(text)
