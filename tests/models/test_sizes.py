"""Sizes as people write them."""

import pytest

from models.sizes import amount, lacks_unit


@pytest.mark.parametrize(
    ("text", "decimal", "binary"),
    [
        ("4GB", 4_000_000_000, 4_294_967_296),
        ("4g", 4_000_000_000, 4_294_967_296),
        ("1.5GiB", 1_610_612_736, 1_610_612_736),
        (" 2 kB ", 2_000, 2_048),
        ("0.5t", 500_000_000_000, 549_755_813_888),
        ("4096", 4_096, 4_096),
        ("4096B", 4_096, 4_096),
    ],
)
def test_amounts(text: str, decimal: int, binary: int) -> None:
    """A unit with an i counts in 1024 always, one without where that is the custom."""
    assert (amount(text), amount(text, binary=True)) == (decimal, binary)


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "0.1B", "5X", "1 2G", "infG", "1e9", "1G\n1G"])
def test_what_is_no_amount(text: str) -> None:
    """Whatever its units count in."""
    assert amount(text) is amount(text, binary=True) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4", "4GB"),
        (" 3.5 ", "3.5GB"),
        ("99", "99GB"),
        ("700", "700MB"),
        ("999999", "999999MB"),
        ("1000000", ""),  # bytes
        ("4GB", ""),
        ("4B", ""),
        ("0", ""),
        ("-4", ""),
        ("four", ""),
    ],
)
def test_a_number_without_its_unit(text: str, meant: str) -> None:
    """Nothing of a model has so few bytes."""
    assert lacks_unit(text) == meant
